"""How a collective's end becomes known, and what that needs at the interpreter's exit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from otel_fr.ring import RecordState

_POLL: Final = 0.001


class Mode(IntEnum):
    """How the end of a call becomes known."""

    IGNORE = 0
    """Not a collective: meta tensors."""
    WORK = 1
    """By the future of its Work; where that has none, by the Work being waited for."""
    RETURN = 2
    """It has ended when the operator returns."""
    UNKNOWN = 3
    """Not from this process."""


def mode_of(backend: str, returns_work: bool) -> Mode:
    """How ends become known with a backend, by its name in torch."""
    if backend == "gloo":
        return Mode.WORK if returns_work else Mode.RETURN
    return Mode.RETURN if backend == "fake" else Mode.UNKNOWN


class FutureCallback:
    """What futures call: ``functools.partial(callback.function, ticket, group index, sequence id)``.

    The backend's thread runs it, and afterwards destroys it, each time taking the GIL. If the interpreter is being
    finalised by then, CPython ends that thread and C++ aborts the process. So before the interpreter goes,
    `drain` waits until no partial object is left.
    """

    def __init__(self, end: Callable[[int, int, int, int, int], None]) -> None:
        """``end(ticket, group index, sequence id, state, ended ns)`` records the end, and does not raise."""
        self.function = _callback(end)
        self._alone = 0
        self._alone = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self.function)

    def outstanding(self) -> int:
        """Callbacks that a backend still holds. Each partial object holds one reference to its function."""
        return max(0, self._references() - self._alone)

    def drain(self, seconds: float) -> bool:
        """Wait until none is outstanding, or so long. True: none is."""
        deadline = time.monotonic() + seconds
        while self.outstanding():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL)
        return True


def _callback(end: Callable[[int, int, int, int, int], None]) -> Callable[[int, int, int, Any], None]:
    clock = time.monotonic_ns
    completed = int(RecordState.COMPLETED)
    failed = int(RecordState.FAILED)

    def function(ticket: int, group_index: int, sequence_id: int, future: Any) -> None:
        now = clock()
        try:
            future.value()
            state = completed
        except Exception:  # noqa: BLE001 - whatever ended the collective
            state = failed
        end(ticket, group_index, sequence_id, state, now)

    return function
