"""How the end of a collective becomes known, and what that requires at the interpreter's exit."""

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
    """When the future of its Work is done; if it has none, when the Work is waited for."""
    RETURN = 2
    """When the operator returns."""
    UNKNOWN = 3
    """Not known in this process."""
    DEVICE = 4
    """When PyTorch sees that the device has ended it. Not known to the Python engine, nor of Works it does not know."""


def end_mode(backend: str, returns_work: bool) -> EndMode:
    """How the end of a call becomes known with a backend (torch's name of it)."""
    if backend == "gloo":
        return EndMode.WORK if returns_work else EndMode.RETURN
    if is_followed(backend):
        return EndMode.DEVICE
    return EndMode.RETURN if backend == "fake" else EndMode.UNKNOWN


def drain(outstanding: Callable[[], int], seconds: float) -> bool:
    """Wait up to ``seconds`` until no callback is outstanding. True: none is."""
    deadline = time.monotonic() + seconds
    while outstanding():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL)
    return True


def let_go_of_futures(
    outstanding: Callable[[], int], groups: Iterable[Any], seconds: float, *, has_raised: bool
) -> bool:
    """At exit, wait until no thread of a backend needs the interpreter for a callback of ours; see `FutureCallback`.

    A rank that ends cleanly with a collective in flight waits until that ends or times out, as torch does when it
    destroys the group at exit.

    Args:
        groups: all of torch's. seconds: the longest wait of a rank that ends by an exception.

    Returns:
        False: callbacks are still outstanding.
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
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    return False


class FutureCallback:
    """The callback of futures: ``functools.partial(callback.function, ticket, group index, sequence id)``.

    A thread of the backend calls it and then destroys it, and needs the GIL for both. If the interpreter is finalising
    by then, CPython ends that thread and C++ aborts the process. So `drain` waits, before the interpreter exits, until
    no partial object is left.
    """

    def __init__(self, end: Callable[[int, int, int, int, int], None]) -> None:
        """``end(ticket, group index, sequence id, state, ended ns)`` records the end, and does not raise."""
        self.function = _callback(end)
        self._alone = sys.getrefcount(self.function)

    def outstanding(self) -> int:
        """Number of callbacks that a backend still holds: each partial object holds one reference to the function."""
        return max(0, sys.getrefcount(self.function) - self._alone)

    def groups(self) -> set[int]:
        """Indexes of the groups with a callback that a backend still holds. Takes as long as a garbage collection."""
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
