"""What the program tells of itself: heartbeats, sections and steps. The rank's monitor judges them.

Everything here runs in the training process, most of it in the training loop: nothing locks, waits, calls the operating
system or raises. Without a recording, which begins with the first process group, only what is open is kept in mind.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from otel_fr.fault_tolerance.user_span import current_span, with_span
from otel_fr.ring import NO_ROW, ActivityWriter, Body
from otel_fr.ring.activity_layout import (
    FLAG_AUTOMATIC,
    FLAG_FAILED,
    FLAG_LEFT,
    KIND_SECTION,
    KIND_STEP,
    MAX_NAME,
)

_log = logging.getLogger("otel_fr")

MAX_OPEN: Final = 1024
"""Sections that are open at once: a program that never ends any must not fill the memory."""
MAX_TIMEOUT: Final = 10 * 365 * 86_400.0
"""Seconds; a longer timeout counts as none."""
MAX_STEP: Final = 2**63 - 1

_Function = TypeVar("_Function", bound=Callable[..., Any])

_now = time.monotonic_ns


class _Open:
    """A section that is open.

    Attributes:
        timeout_ms: 0: none. owner: the context manager that ends it; None: `end_section` does. row: in the ring.
    """

    __slots__ = ("began", "name", "number", "owner", "parent", "root", "row", "step", "thread", "timeout_ms")

    def __init__(self, name: str, timeout_ms: int, owner: Section | None, thread: _Thread, number: int) -> None:
        self.name = name
        self.timeout_ms = timeout_ms
        self.owner = owner
        self.thread = thread
        self.number = number
        self.row = NO_ROW
        self.parent: int
        self.root: int
        step = _state.step
        outer = thread.stack[-1] if thread.stack else None
        if outer is not None and (step is None or outer.number > step[0]):
            self.parent, self.root = outer.number, outer.root
        elif step is not None:
            self.parent = self.root = step[0]
        else:
            self.parent, self.root = 0, number
        self.step = step[10] if step is not None else -1
        self.began = _now()

    def body(self, ring: ActivityWriter, ended: int = 0, flags: int = 0) -> Body:
        thread = self.thread
        return (
            self.number,
            KIND_SECTION | flags,
            ring.names.get(self.name) or ring.reference(self.name),
            thread.ident,
            thread.native_id,
            self.began,
            ended,
            self.timeout_ms,
            self.parent,
            self.root,
            self.step,
        )


class _Thread:
    """A thread that has begun a section. ``stack``: its open ones, innermost last."""

    __slots__ = ("ident", "native_id", "pid", "stack")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.native_id = threading.get_native_id()
        self.pid = os.getpid()
        self.stack: list[_Open] = []


class _Guard:
    """Kept by nothing but its thread's own data: its end is the thread's, and ends the thread's sections."""

    __slots__ = ("_thread",)

    def __init__(self, thread: _Thread) -> None:
        self._thread = thread

    def __del__(self) -> None:
        # In a forked child, the threads of its parent are cleared away before any handler runs.
        thread = self._thread
        if thread.stack and thread.pid == os.getpid():
            with contextlib.suppress(Exception):
                for entry in reversed(thread.stack):
                    _end(entry, FLAG_LEFT)


class _State:
    """What is known in this process.

    Attributes:
        ring: of the recording; None: there is none. opened: the open sections, by number.
        step: body of the current step. has_own_steps: the program calls `step`, so optimizers do not count.
        forget_hook: removes the hook on optimizers. misuses: kinds of wrong calls that were warned of.
        limits: as `ActivityWriter.set_limits` takes them. send: passes a message to the monitor.
    """

    def __init__(self) -> None:
        self.ring: ActivityWriter | None = None
        self.opened: dict[int, _Open] = {}
        self.step: Body | None = None
        self.has_own_steps = False
        self.forget_hook: Callable[[], None] = lambda: None
        self.misuses: set[str] = set()
        self.watches_forks = False
        self.limits = (0, 0, 0, 0)
        self.send: Callable[[dict[str, Any]], bool] | None = None


_state = _State()
_local = threading.local()
_next_number: Callable[[], int] = itertools.count(1).__next__


def _this_thread() -> _Thread:
    try:
        thread: _Thread = _local.thread
    except AttributeError:
        thread = _local.thread = _Thread()
        _local.guard = _Guard(thread)
    return thread


# ---- the program's calls


def heartbeat() -> None:
    """Tell that the program makes progress; from the first call on, the monitor knows how old the last one is.

    Takes less than a microsecond. Never raises. Before a process group exists it does nothing.
    """
    ring = _state.ring
    if ring is not None:
        try:
            ring.heartbeat(_now())
        except Exception as error:  # noqa: BLE001 - the job comes first
            _failed(error)


class Section:
    """See `otel_fr.section`."""

    __slots__ = ("_entries", "name", "timeout")

    def __init__(self, name: str, timeout: float | None = None) -> None:
        self.name = name
        self.timeout = timeout
        self._entries: list[_Open] = []

    def __enter__(self) -> Section:
        try:
            entry = _begin(self.name, self.timeout, self)
            if entry is not None:
                self._entries.append(entry)
        except Exception as error:  # noqa: BLE001
            _failed(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._entries:
                entry = self._entries.pop()
                stack = entry.thread.stack
                if not stack or stack[-1] is not entry:
                    _end_inside(entry)
                _end(entry, FLAG_FAILED if kind is not None else 0)
        except Exception as error:  # noqa: BLE001
            _failed(error)

    def __call__(self, function: _Function) -> _Function:
        """A function of which each call is such a section; of a coroutine function, from the first await to the end."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                with Section(self.name, self.timeout):
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                with Section(self.name, self.timeout):
                    return function(*args, **kwargs)

        return cast("_Function", run)


def section(name: str, timeout: float | None = None) -> Section:
    """A part of the program with a name: ``with otel_fr.section("dataloading", timeout=30):``.

    Also a decorator of functions: ``@otel_fr.section("evaluation")``. Sections nest. However the block is left, the
    section ends, and so do those that `start_section` began in it.

    Args:
        name: the first 120 bytes count; a few dozen different ones at most.
        timeout: seconds after which the section has lasted too long; None: as learned, else none.
    """
    return Section(name, timeout)


def start_section(name: str, timeout: float | None = None) -> None:
    """Begin a section that `end_section` ends; otherwise as `section`. Such sections may overlap.

    One of this name that this thread has begun so before, and not ended, ends now: an exception has skipped its end.
    """
    try:
        before = _find(reversed(_this_thread().stack), name)
        if before is not None:
            _misused(f"section {_shown(name)} was started again before it was ended")
            _end(before, FLAG_LEFT)
        _begin(name, timeout, None)
    except Exception as error:  # noqa: BLE001
        _failed(error)


def end_section(name: str) -> None:
    """End the section of this name that `start_section` began last, in this thread if there is one, else in another."""
    try:
        entry = _find(reversed(_this_thread().stack), name) or _find(reversed(list(_state.opened.values())), name)
        if entry is None:
            _misused(f"section {_shown(name)} was ended but not started")
        else:
            _end(entry, 0)
    except Exception as error:  # noqa: BLE001
        _failed(error)


def end_all_sections() -> None:
    """End every section that `start_section` began, in all threads."""
    try:
        for entry in reversed(list(_state.opened.values())):
            if entry.owner is None:
                _end(entry, 0)
    except Exception as error:  # noqa: BLE001
        _failed(error)


def step(number: int | None = None) -> None:
    """Tell that a step of the training begins, and so that the one before has ended; counts as a heartbeat.

    From the first call on, the steps of optimizers are not counted any more.

    Args:
        number: of the step; None: one more than that of the step before, from 0 on.
    """
    try:
        if not _state.has_own_steps:
            _state.has_own_steps = True
            _state.forget_hook()
            _state.forget_hook = _nothing
            if number is None:
                number = 0
        before = _state.step
        if number is None:
            number = before[10] + 1 if before is not None else 0
        elif not isinstance(number, int) or not -MAX_STEP <= number <= MAX_STEP:
            number = _integer(number)
            if number is None:
                return
        _begin_step(int(number), 0)
    except Exception as error:  # noqa: BLE001
        _failed(error)


def _integer(number: object) -> int | None:
    """A number of numpy or torch as one of Python's."""
    try:
        found = number.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        found = MAX_STEP + 1
    if -MAX_STEP <= found <= MAX_STEP:
        return int(found)
    _misused("the number of a step is not an integer of 64 bits")
    return None


def count_step() -> None:
    """An optimizer has made a step: the next one begins."""
    try:
        if not _state.has_own_steps:
            before = _state.step
            _begin_step(before[10] + 1 if before is not None else 1, FLAG_AUTOMATIC)
    except Exception as error:  # noqa: BLE001
        _failed(error)


def _nothing() -> None:
    pass


# ---- sections and steps


def _find(entries: Iterable[_Open], name: object) -> _Open | None:
    """The first of these that `start_section` began under this name, of which the first characters count."""
    kept = name[:MAX_NAME] if isinstance(name, str) else name
    return next((entry for entry in entries if entry.owner is None and entry.name == kept), None)


def _begin(name: object, timeout: object, owner: Section | None) -> _Open | None:
    if not isinstance(name, str):
        _misused(f"the name of a section is not text but {type(name).__name__}")
        return None
    if len(_state.opened) >= MAX_OPEN:
        _misused(f"more than {MAX_OPEN} sections are open")
        return None
    thread = _this_thread()
    timeout_ms = 0 if timeout is None else _milliseconds(timeout)
    entry = _Open(name if len(name) <= MAX_NAME else name[:MAX_NAME], timeout_ms, owner, thread, _next_number())
    thread.stack.append(entry)
    _state.opened[entry.number] = entry
    ring = _state.ring
    if ring is not None:
        try:
            entry.row = ring.open(entry.body(ring))
        except Exception as error:  # noqa: BLE001 - it is open, recorded or not, so that it can be ended
            _failed(error)
    return entry


def _milliseconds(timeout: object) -> int:
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0:
        return math.ceil(timeout * 1000) if timeout <= MAX_TIMEOUT else 0
    _misused(f"the timeout of a section is not a number of seconds above 0 but {str(timeout)[:40]!r}")
    return 0


def _end(entry: _Open, flags: int) -> None:
    if _state.opened.pop(entry.number, None) is None:
        return  # it was ended meanwhile
    stack = entry.thread.stack
    if stack and stack[-1] is entry:
        stack.pop()
    else:
        with contextlib.suppress(ValueError):
            stack.remove(entry)
    ring = _state.ring
    if ring is not None:
        ring.end(entry.row, entry.body(ring, _now(), flags))


def _end_inside(entry: _Open) -> None:
    """End what `start_section` began within a block that is left now."""
    stack = entry.thread.stack
    if entry in stack:
        for inner in reversed(stack[stack.index(entry) + 1 :]):
            if inner.owner is None:
                _end(inner, FLAG_LEFT)


def _begin_step(number: int, flags: int) -> None:
    now = _now()
    before, ring = _state.step, _state.ring
    own = _next_number()
    thread = _this_thread()
    body: Body = (own, KIND_STEP | flags, 0, thread.ident, thread.native_id, now, 0, 0, 0, own, number)
    span = current_span()
    if span is not None:
        if not flags & FLAG_AUTOMATIC:
            body = with_span(body, span)
        elif before is not None and before[1] & FLAG_AUTOMATIC:
            # The program's span is that of the step which its optimizer ends.
            before = with_span(before, span)
    _state.step = body
    if ring is None:
        return
    if before is not None:
        ring.log((*before[:6], now, *before[7:]))
    ring.set_step(body)
    ring.heartbeat(now)


# ---- wrong calls


def _shown(name: object) -> str:
    return repr(name[:80] if isinstance(name, str) else name)[:90]


def _misused(text: str) -> None:
    """Count a wrong call; the first of its kind is warned of."""
    ring = _state.ring
    if ring is not None:
        ring.misuse()
    kind = text.partition("'")[0]
    if kind not in _state.misuses and len(_state.misuses) < 16:
        _state.misuses.add(kind)
        _log.warning("otel-fr: %s; it is ignored, and so are further calls of this kind", text)


def _failed(error: Exception) -> None:
    """An error of ours, or the recording has ended in another thread meanwhile."""
    _log.debug("otel-fr: a heartbeat, section or step is not recorded: %s", error)


# ---- the recording


def attach(ring: ActivityWriter) -> None:
    """The recording has started: enter what is open."""
    if not _state.watches_forks:
        _state.watches_forks = True
        os.register_at_fork(after_in_child=_after_fork)
    _state.ring = ring
    if any(_state.limits):
        ring.set_limits(*_state.limits)
    if _state.step is not None:
        ring.set_step(_state.step)
    for entry in list(_state.opened.values()):
        entry.row = ring.open(entry.body(ring))
        if entry.number not in _state.opened:  # another thread has ended it meanwhile
            ring.free(entry.row, entry.number)


def detach() -> None:
    """The recording ends; sections stay open."""
    _state.ring = None
    _state.send = None
    _state.forget_hook()
    _state.forget_hook = _nothing
    for entry in list(_state.opened.values()):
        entry.row = NO_ROW


def count_steps_by(forget_hook: Callable[[], None]) -> None:
    """A hook calls `count_step`. ``forget_hook`` removes it."""
    if _state.has_own_steps:
        forget_hook()
    else:
        _state.forget_hook = forget_hook


def set_limits(
    heartbeat: float | None = None, first: float | None = None, since_ns: int = 0, outside: float | None = None
) -> None:
    """Give the monitor limits of this process, in seconds; None or more than `MAX_TIMEOUT`: none.

    See `ActivityWriter.set_limits`.

    Raises:
        ValueError: one of them is negative or NaN.
    """
    given = [_limit_ms(value) for value in (heartbeat, first, outside)]
    _state.limits = (given[0], given[1], since_ns, given[2])
    ring = _state.ring
    if ring is not None:
        ring.set_limits(*_state.limits)


def _limit_ms(limit: float | None) -> int:
    if limit is None or limit > MAX_TIMEOUT:
        return 0
    if not limit >= 0:  # NaN, too
        raise ValueError(f"a limit is not a number of seconds but {limit!r}")
    return max(1, math.ceil(limit * 1000))


def stop_watching() -> None:
    """Forget heartbeats and limits."""
    _state.limits = (0, 0, 0, 0)
    ring = _state.ring
    if ring is not None:
        ring.stop_watching()


def set_link(send: Callable[[dict[str, Any]], bool]) -> None:
    """``send`` passes a message to the monitor; False: it is not there."""
    _state.send = send


def send_to_monitor(message: dict[str, Any]) -> bool:
    """Pass a message to the monitor; False: there is none."""
    send = _state.send
    return send is not None and send(message)


def is_recording() -> bool:
    """There is a ring."""
    return _state.ring is not None


def _after_fork() -> None:
    """A forked child is not the rank: nothing it does may reach its parent's ring."""
    _state.ring = None
    _state.send = None
    _state.forget_hook = _nothing
    own = getattr(_local, "thread", None)
    for number, entry in list(_state.opened.items()):
        entry.row = NO_ROW
        if entry.thread is not own:
            del _state.opened[number]
    if own is not None:
        own.pid, own.native_id = os.getpid(), threading.get_native_id()


for _call in (heartbeat, section, start_section, end_section, step, Section.__enter__, Section.__exit__):
    # As torch.compiler.disable, without its wrapper: a compiled program's graph ends before them, and goes on after.
    _call.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg="otel-fr records here")
