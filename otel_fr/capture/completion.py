"""How the end of a collective becomes known, and what this requires when the interpreter exits."""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final

from otel_fr.ring import RecordState
from otel_fr.torch_recorder import is_followed

_log = logging.getLogger("otel_fr")

_POLL: Final = 0.001


class EndMode(IntEnum):
    """How the end of a call becomes known."""

    IGNORE = 0
    """Not a collective: meta tensors."""
    WORK = 1
    """When the future of its Work is done. If the Work has no future: when a thread waits for the Work."""
    RETURN = 2
    """When the operator returns."""
    UNKNOWN = 3
    """Not known in this process."""
    DEVICE = 4
    """When PyTorch sees that the device has ended the call. Only the compiled engine can follow this, and only for
    Works that it knows."""


def end_mode(backend: str, returns_work: bool) -> EndMode:
    """Return how the end of a call becomes known. ``backend``: the name that torch uses."""
    if backend == "gloo":
        return EndMode.WORK if returns_work else EndMode.RETURN
    if is_followed(backend):
        return EndMode.DEVICE
    return EndMode.RETURN if backend == "fake" else EndMode.UNKNOWN


def drain(outstanding: Callable[[], int], seconds: float) -> bool:
    """Wait up to ``seconds`` until no callback is outstanding. Return False if a callback remains."""
    deadline = time.monotonic() + seconds
    while outstanding():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def let_go_of_futures(
    outstanding: Callable[[], int], groups: Iterable[Any], seconds: float, *, has_raised: bool
) -> bool:
    """At exit, wait until no thread of a backend needs the interpreter for otel-fr's callbacks; see `FutureCallback`.

    A rank that ends cleanly with a collective in flight waits until the collective ends or times out. torch does the
    same when it destroys the group at exit.

    Args:
        groups: all process groups of torch.
        seconds: longest wait of a rank that ends by an exception.

    Returns:
        False if callbacks are still outstanding.
    """
    try:
        if drain(outstanding, seconds):
            return True
        if not has_raised:
            _log.info("otel-fr: waiting at exit for a collective in flight")
            while not drain(outstanding, 60.0):
                pass
            return True
    except KeyboardInterrupt:
        pass
    # Make the groups immortal: at exit their destructors would wait for threads that wait for the interpreter.
    for group in list(groups):
        keep_for_ever(group)
    return False


def keep_for_ever(value: object) -> None:
    """Make an object immortal, so that its destructor never runs."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class FutureCallback:
    """Makes the callbacks of futures: ``functools.partial(callback.function, ticket, group index, sequence number)``.

    A thread of the backend calls the partial object and then destroys it, and needs the GIL for both. If the
    interpreter is finalising by then, CPython ends that thread and C++ aborts the process. So `drain` waits, before the
    interpreter exits, until no partial object is left.
    """

    def __init__(self, end: Callable[[int, int, int, int, int], None]) -> None:
        """``end(ticket, group index, sequence id, state, ended ns)`` records the end, and does not raise."""
        self.function = _callback(end)
        self._alone = sys.getrefcount(self.function)

    def outstanding(self) -> int:
        """Return the number of callbacks that a backend still holds. Each holds one reference to the function."""
        return max(0, sys.getrefcount(self.function) - self._alone)

    def groups(self) -> set[int]:
        """Return the indexes of groups with outstanding callbacks. Takes as long as a garbage collection."""
        if not self.outstanding():
            return set()
        found = gc.get_referrers(self.function)
        return {callback.args[1] for callback in found if type(callback) is functools.partial}


def _callback(end: Callable[[int, int, int, int, int], None]) -> Callable[[int, int, int, Any], None]:
    clock = time.monotonic_ns
    completed = int(RecordState.COMPLETED)
    failed = int(RecordState.FAILED)

    def function(ticket: int, group_index: int, sequence_id: int, future: Any) -> None:
        now = clock()
        try:
            future.value()
            state = completed
        except Exception:  # noqa: BLE001 - any error that ended the collective
            state = failed
        end(ticket, group_index, sequence_id, state, now)

    return function
