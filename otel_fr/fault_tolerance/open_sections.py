"""The open sections of a process, by thread, and its current step. Writes them into the ring.

All of this runs in the training loop: nothing locks, waits or calls the operating system. ``benchmarks/ring.py``
measures the optimisations (values kept in locals, an end that writes the body of the begin again).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from math import ceil
from typing import Any, Final

from otel_fr.config import MAX_SECONDS
from otel_fr.fault_tolerance.user_span import current_span, with_span
from otel_fr.ring import NO_ROW, ActivityWriter, Body
from otel_fr.ring.activity_layout import FLAG_AUTOMATIC, FLAG_LEFT, KIND_SECTION, KIND_STEP, MAX_NAME

_log = logging.getLogger("otel_fr")

MAX_OPEN: Final = 1024
"""Most open sections: a program that never ends any must not fill the memory."""
MAX_MISUSES: Final = 16
"""How many kinds of wrong calls are logged as warnings."""

_NUMBER, _KIND, _ROOT, _STEP = 0, 1, 9, 10
"""Indexes in a `Body`."""

now_ns = time.monotonic_ns
_next_number: Callable[[], int] = itertools.count(1).__next__


class Open:
    """An open section.

    Attributes:
        body: the body of its row, which has the name's reference in the ring.
        row: offset of its row in the ring, or `NO_ROW`.
        owner: the context manager that ends the section; None: `end_section` ends it.
    """

    __slots__ = ("body", "name", "number", "owner", "row", "thread")

    def __init__(self, number: int, name: str, body: Body, owner: object, thread: Thread) -> None:
        self.number = number
        self.name = name
        self.body = body
        self.owner = owner
        self.thread = thread
        self.row = NO_ROW


class Thread:
    """A thread that has begun a section or step. ``stack``: its open sections, innermost last."""

    __slots__ = ("ident", "native_id", "pid", "stack", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.ident = threading.get_ident()
        self.native_id = threading.get_native_id()
        self.pid = os.getpid()
        self.stack: list[Open] = []


class Guard:
    """Ends a thread's sections when the thread ends: only thread-local data refers to the guard."""

    __slots__ = ("_thread",)

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def __del__(self) -> None:
        # In a forked child, Python destroys the thread-local data of the parent's threads before any handler runs.
        thread = self._thread
        if thread.stack and thread.pid == os.getpid():
            with contextlib.suppress(Exception):
                for entry in reversed(thread.stack):
                    thread.state.end(entry, FLAG_LEFT)


class State:
    """State of this process.

    Attributes:
        ring: the recording's writer; None: nothing is recorded.
        opened: the open sections, by number.
        step: body of the current step.
        has_own_steps: True once the program calls `step`. Steps of optimizers are not counted then.
        forget_hook: removes the hook on optimizers.
        note_end: see `sections.watch_ends_by`.
        limits: arguments of `ActivityWriter.set_limits`.
        send: passes a message to the monitor.
        local: has the attribute ``thread`` once this thread has begun a section or step.
    """

    def __init__(self) -> None:
        self.ring: ActivityWriter | None = None
        self.opened: dict[int, Open] = {}
        self.step: Body | None = None
        self.has_own_steps = False
        self.forget_hook: Callable[[], None] = nothing
        self.note_end: Callable[[int, int], None] = ignore_end
        self.limits = (0, 0, 0, 0)
        self.send: Callable[[dict[str, Any]], bool] | None = None
        self.local = threading.local()
        self._misuses: set[str] = set()
        self._watches_forks = False

    def this_thread(self) -> Thread:
        """Return the state of the calling thread."""
        try:
            thread: Thread = self.local.thread
        except AttributeError:
            thread = self.local.thread = Thread(self)
            self.local.guard = Guard(thread)
        return thread

    # ---- sections

    def begin(self, name: object, timeout: object, owner: object = None) -> None:  # noqa: PLR0912
        """Begin a section in this thread, unless its name is no text or too many are open. ``owner``: see `Open`."""
        if type(name) is not str and not isinstance(name, str):
            self.misused(f"the name of a section must be text, not {type(name).__name__}")
            return
        opened = self.opened
        if len(opened) >= MAX_OPEN:
            self.misused(f"more than {MAX_OPEN} sections are open")
            return
        try:
            thread: Thread = self.local.thread
        except AttributeError:
            thread = self.this_thread()
        stack, step, ring, number = thread.stack, self.step, self.ring, _next_number()
        if timeout is None:
            timeout_ms = 0
        elif type(timeout) is int and 0 < timeout <= MAX_SECONDS:
            timeout_ms = timeout * 1000
        else:
            timeout_ms = self._milliseconds(timeout)
        reference = 0 if ring is None else ring.names.get(name, 0)
        if not reference:
            name = name[:MAX_NAME]
            reference = 0 if ring is None else ring.reference(name)
        if stack and (step is None or stack[-1].number > step[_NUMBER]):
            parent, root = stack[-1].number, stack[-1].body[_ROOT]
        elif step is not None:
            parent = root = step[_NUMBER]
        else:
            parent, root = 0, number
        body: Body = (
            number,
            KIND_SECTION,
            reference,
            thread.ident,
            thread.native_id,
            now_ns(),
            0,
            timeout_ms,
            parent,
            root,
            -1 if step is None else step[_STEP],
        )
        entry = Open(number, name, body, owner, thread)
        stack.append(entry)
        opened[number] = entry
        if ring is not None:
            try:
                entry.row = ring.open(body)
            except Exception as error:  # noqa: BLE001 - keep the section open without a record, so that it can be ended
                failed(error)
        elif self.ring is not None:  # the recording has started meanwhile
            self._enter(entry, self.ring)

    def end(self, entry: Open, flags: int) -> None:
        """End a section, unless it has ended meanwhile."""
        if self.opened.pop(entry.number, None) is None:
            return
        stack = entry.thread.stack
        if stack and stack[-1] is entry:
            stack.pop()
        else:
            with contextlib.suppress(ValueError):
                stack.remove(entry)
        ring = self.ring
        if ring is not None:
            ring.end(entry.row, entry.body, now_ns(), flags)

    def end_block(self, owner: object, stack: list[Open], flags: int) -> None:
        """End the section that a context manager began last in this thread or, if there is none, in another.

        Args:
            stack: this thread's open sections. The innermost is not the context manager's.
        """
        entries = itertools.chain(reversed(stack), reversed(list(self.opened.values())))
        found = next((entry for entry in entries if entry.owner is owner), None)
        if found is not None:
            self._end_inside(found)
            self.end(found, flags)

    def _end_inside(self, entry: Open) -> None:
        """End the sections that `start_section` began inside ``entry``, because the block of ``entry`` ends."""
        stack = entry.thread.stack
        if entry in stack:
            for inner in reversed(stack[stack.index(entry) + 1 :]):
                if inner.owner is None:
                    self.end(inner, FLAG_LEFT)

    def _milliseconds(self, timeout: object) -> int:
        if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0:
            return ceil(timeout * 1000) if timeout <= MAX_SECONDS else 0
        self.misused(f"the timeout of a section must be a number of seconds above 0, not {str(timeout)[:40]!r}")
        return 0

    # ---- steps

    def begin_step(self, number: int, flags: int) -> None:
        """Begin a step, and end the previous one."""
        now = now_ns()
        before, ring = self.step, self.ring
        own = _next_number()
        thread = self.this_thread()
        body: Body = (own, KIND_STEP | flags, 0, thread.ident, thread.native_id, now, 0, 0, 0, own, number)
        span = current_span()
        if span is not None:
            if not flags & FLAG_AUTOMATIC:
                body = with_span(body, span)
            elif before is not None and before[_KIND] & FLAG_AUTOMATIC:
                # The step that the optimizer ends gets the program's span.
                before = with_span(before, span)
        self.step = body
        if ring is None:
            return
        if before is not None:
            ring.log(before, now)
        ring.set_step(body)
        ring.heartbeat(now)

    # ---- the recording

    def attach(self, ring: ActivityWriter) -> None:
        """Write the open sections and the current step, because the recording has started."""
        if not self._watches_forks:
            self._watches_forks = True
            os.register_at_fork(after_in_child=self._after_fork)
        self.ring = ring
        if any(self.limits):
            ring.set_limits(*self.limits)
        if self.step is not None:
            ring.set_step(self.step)
        for entry in list(self.opened.values()):
            self._enter(entry, ring)

    def _enter(self, entry: Open, ring: ActivityWriter) -> None:
        entry.body = (*entry.body[:2], ring.reference(entry.name), *entry.body[3:])
        entry.row = ring.open(entry.body)
        if entry.number not in self.opened:  # another thread has ended it meanwhile
            ring.free(entry.row, entry.number)

    def detach(self) -> None:
        """Stop writing, because the recording ends. Sections stay open."""
        self.ring = None
        self.send = None
        self.forget_hook()
        self.forget_hook = nothing
        for entry in list(self.opened.values()):
            entry.row = NO_ROW

    def _after_fork(self) -> None:
        """Detach from the ring in a forked child: it is not the rank, and must not write into its parent's ring."""
        self.ring = None
        self.send = None
        self.forget_hook = nothing
        own = getattr(self.local, "thread", None)
        for number, entry in list(self.opened.items()):
            entry.row = NO_ROW
            if entry.thread is not own:
                del self.opened[number]
        if own is not None:
            own.pid, own.native_id = os.getpid(), threading.get_native_id()

    # ---- wrong calls

    def misused(self, text: str) -> None:
        """Count a wrong call. The first of its kind is logged as a warning."""
        ring = self.ring
        if ring is not None:
            ring.misuse()
        kind = text.partition("'")[0]
        if kind not in self._misuses and len(self._misuses) < MAX_MISUSES:
            self._misuses.add(kind)
            _log.warning("otel-fr: %s; ignoring it and further calls of this kind", text)


def find(entries: Iterable[Open], name: object) -> Open | None:
    """Return the first of ``entries`` that `start_section` began under this name, or None.

    The first `MAX_NAME` characters of the name count.
    """
    kept = name[:MAX_NAME] if isinstance(name, str) else name
    return next((entry for entry in entries if entry.owner is None and entry.name == kept), None)


def failed(error: Exception) -> None:
    """Log an error of otel-fr, which may also mean that another thread has ended the recording."""
    _log.debug("otel-fr: could not record a heartbeat, section or step: %s", error)


def ignore_end(_number: int, _step: int) -> None:
    """Default for `State.note_end`."""


def nothing() -> None:
    """Default for `State.forget_hook`."""
