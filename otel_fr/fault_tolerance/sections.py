"""Heartbeats, sections and steps that the program reports. The rank's monitor judges them.

Everything here runs in the training process, most of it in the training loop: nothing locks, waits, calls the operating
system or raises. Until the recording begins with the first process group, only open sections and the current step are
remembered.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from otel_fr.config import MAX_SECONDS
from otel_fr.fault_tolerance.open_sections import State, failed, find, ignore_end, nothing, now_ns
from otel_fr.ring import ActivityWriter
from otel_fr.ring.activity_layout import FLAG_AUTOMATIC, FLAG_FAILED, FLAG_LEFT

MAX_STEP: Final = 2**63 - 1

_Function = TypeVar("_Function", bound=Callable[..., Any])

_state = State()


# ---- the program's calls


def heartbeat() -> None:
    """Report that the program makes progress. From the first call on, the monitor knows the last heartbeat's age.

    Takes less than a microsecond. Never raises. Does nothing before a process group exists.
    """
    ring = _state.ring
    if ring is not None:
        try:
            ring.heartbeat(now_ns())
        except Exception as error:  # noqa: BLE001 - the job comes first
            failed(error)


class Section:
    """See `otel_fr.section`."""

    __slots__ = ("name", "timeout")

    def __init__(self, name: str, timeout: float | None) -> None:
        self.name = name
        self.timeout = timeout

    def __enter__(self) -> Section:
        try:
            _state.begin(self.name, self.timeout, self)
        except Exception as error:  # noqa: BLE001
            failed(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            state, flags = _state, 0 if kind is None else FLAG_FAILED
            try:
                stack = state.local.thread.stack
            except AttributeError:  # another thread began the section
                stack = []
            entry = stack[-1] if stack else None
            if entry is None or entry.owner is not self:
                state.end_block(self, stack, flags)
            elif state.opened.pop(entry.number, None) is not None:  # like `State.end`, but faster
                stack.pop()
                ring = state.ring
                if ring is not None:
                    ring.end(entry.row, entry.body, now_ns(), flags)
        except Exception as error:  # noqa: BLE001
            failed(error)

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function, so that each call of the function is a section.

        For a coroutine function, the section lasts from the first await to the end.
        """
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
    """Name a part of the program: ``with otel_fr.section("dataloading", timeout=30):``.

    Also decorates functions: ``@otel_fr.section("evaluation")``. Sections may nest. When the block ends, in whatever
    way, the section ends, and so do sections that `start_section` began inside it.

    Args:
        name: the first 120 bytes count. Use a few dozen different names at most.
        timeout: seconds after which the section has lasted too long; None: the environment's timeout, if any.
    """
    return Section(name, timeout)


def start_section(name: str, timeout: float | None = None) -> None:
    """Begin a section that `end_section` ends. Takes the arguments of `section`. These sections may overlap.

    If this thread has an open section of this name from an earlier `start_section`, that section ends now: an exception
    has skipped its end.
    """
    try:
        before = find(reversed(_state.this_thread().stack), name)
        if before is not None:
            _state.misused(f"section {_shown(name)} was started again before it was ended")
            _state.end(before, FLAG_LEFT)
        _state.begin(name, timeout)
    except Exception as error:  # noqa: BLE001
        failed(error)


def end_section(name: str) -> None:
    """End the section of this name that `start_section` began last in this thread or, if there is none, in another."""
    try:
        entry = find(reversed(_state.this_thread().stack), name) or find(reversed(list(_state.opened.values())), name)
        if entry is None:
            _state.misused(f"section {_shown(name)} was ended but not started")
        else:
            _state.end(entry, 0)
    except Exception as error:  # noqa: BLE001
        failed(error)


def end_all_sections() -> None:
    """End every section that `start_section` began, in all threads."""
    try:
        for entry in reversed(list(_state.opened.values())):
            if entry.owner is None:
                _state.end(entry, 0)
    except Exception as error:  # noqa: BLE001
        failed(error)


def step(number: int | None = None) -> None:
    """Report that a training step begins, which ends the previous step. Counts as a heartbeat.

    From the first call on, steps of optimizers are no longer counted.

    Args:
        number: number of the step; None: the previous number plus one, beginning with 0.
    """
    try:
        if not _state.has_own_steps:
            _state.has_own_steps = True
            _state.forget_hook()
            _state.forget_hook = nothing
            if number is None:
                number = 0
        before = _state.step
        if number is None:
            number = before[10] + 1 if before is not None else 0
        elif not isinstance(number, int) or not -MAX_STEP <= number <= MAX_STEP:
            number = _integer(number)
            if number is None:
                return
        if before is not None and not before[1] & FLAG_AUTOMATIC:
            _state.note_end(before[0], before[10])
        _state.begin_step(int(number), 0)
    except Exception as error:  # noqa: BLE001
        failed(error)


def _integer(number: object) -> int | None:
    """Convert a number of numpy or torch to Python's int. None: it is not an integer of 64 bits."""
    try:
        found = number.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        found = MAX_STEP + 1
    if -MAX_STEP <= found <= MAX_STEP:
        return int(found)
    _state.misused("the number of a step must be an integer of 64 bits")
    return None


def count_step() -> None:
    """Begin the next step, because an optimizer has made a step."""
    try:
        if not _state.has_own_steps:
            before = _state.step
            _state.begin_step(before[10] + 1 if before is not None else 1, FLAG_AUTOMATIC)
    except Exception as error:  # noqa: BLE001
        failed(error)


def _shown(name: object) -> str:
    return repr(name[:80] if isinstance(name, str) else name)[:90]


# ---- the recording


def attach(ring: ActivityWriter) -> None:
    """Write the open sections and the current step, because the recording has started."""
    _state.attach(ring)


def detach() -> None:
    """Stop writing, because the recording ends. Sections stay open."""
    _state.detach()


def count_steps_by(forget_hook: Callable[[], None]) -> None:
    """Note that a hook calls `count_step`. ``forget_hook`` removes the hook."""
    if _state.has_own_steps:
        forget_hook()
    else:
        _state.forget_hook = forget_hook


def watch_ends_by(note_end: Callable[[int, int], None] | None) -> None:
    """Call ``note_end`` at the end of each step that the program has reported. None: stop calling it.

    Its arguments are the step's number as an activity, which is unique and not 0, and the step's own number. It must
    not raise.
    """
    _state.note_end = note_end or ignore_end


def set_limits(
    heartbeat: float | None = None, first: float | None = None, since_ns: int = 0, outside: float | None = None
) -> None:
    """Set the limits of this process that the monitor watches (`ActivityWriter.set_limits`).

    Limits are in seconds; None or more than `MAX_SECONDS`: no limit. ``since_ns`` is in monotonic ns.

    Raises:
        ValueError: a limit is negative or NaN.
    """
    given = [_limit_ms(value) for value in (heartbeat, first, outside)]
    _state.limits = (given[0], given[1], since_ns, given[2])
    ring = _state.ring
    if ring is not None:
        ring.set_limits(*_state.limits)


def _limit_ms(limit: float | None) -> int:
    if limit is None or limit > MAX_SECONDS:
        return 0
    if not limit >= 0:  # NaN, too
        raise ValueError(f"a limit must be a number of seconds, not {limit!r}")
    return max(1, math.ceil(limit * 1000))


def stop_watching() -> None:
    """Forget heartbeats and limits."""
    _state.limits = (0, 0, 0, 0)
    ring = _state.ring
    if ring is not None:
        ring.stop_watching()


def set_link(send: Callable[[dict[str, Any]], bool]) -> None:
    """Set the function that passes a message to the monitor. It returns False if it cannot."""
    _state.send = send


def send_to_monitor(message: dict[str, Any]) -> bool:
    """Pass a message to the monitor. Return False if there is no monitor."""
    send = _state.send
    return send is not None and send(message)


def current_step() -> int:
    """Return the number of the step that began last; -1: none has begun."""
    step = _state.step
    return -1 if step is None else step[10]


def own_step() -> tuple[int, int] | None:
    """Return the numbers of the step that began last, as in `watch_ends_by`. None: the program reported no step."""
    step = _state.step
    return None if step is None or step[1] & FLAG_AUTOMATIC else (step[0], step[10])


def is_recording() -> bool:
    return _state.ring is not None


def keep_out(*functions: Callable[..., Any]) -> None:
    """Keep ``torch.compile`` from inlining these functions of otel-fr, which programs call: graphs end before them.

    This sets the same attributes as ``torch.compiler.disable``, but adds no wrapper.
    """
    for function in functions:
        function.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg="otel-fr records here")


keep_out(heartbeat, section, start_section, end_section, step, Section.__enter__, Section.__exit__)
