"""Replaces ``Work.wait``, to record the end of calls and to explain the errors of calls that otel-fr has ended.

If a Work has no future (gloo's send, recv, reduce_scatter), only ``wait`` shows the end of the call. So the Python
engine replaces ``wait`` once such a call is made. The compiled engine uses ``FollowedWork`` for this
(native/followed_work.hpp). Errors are explained if OTEL_FR_ON_PEER_FAILURE lets otel-fr end calls.

A Work is identified by its Python object. Each thread's last Work is held until its caller has it, that is until the
thread's next call, its end, or until any thread waits for the Work. Other Works are kept by weak references.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from otel_fr.capture.replaced import Attribute, Replacements
from otel_fr.fault_tolerance.sections import keep_out
from otel_fr.ring import POSTED, RecordState

End = Callable[[int, int, int, int, int], None]


class _Held:
    """A thread's last Work, or None."""

    __slots__ = ("__weakref__", "work")

    def __init__(self) -> None:
        self.work: Any = None


class _Here(threading.local):
    """What the current thread holds. It ends with the thread."""

    def __init__(self) -> None:
        self.held = _Held()


class Waits:
    """Tracks Works until they are waited for or dropped."""

    def __init__(self, types: Any, end: End, waited: Callable[[int, int], None]) -> None:
        """The callbacks must not raise.

        Args:
            types: the namespace that has torch's ``Work``.
            end: called as ``end(ticket, group index, sequence number, state, ns)`` when a call has ended.
            waited: called as ``waited(ticket, ns)`` when a thread begins to wait for a call, with `POSTED` while no
                thread waits. Only for sends and receives: C++ waits for functional collectives unseen by Python.
        """
        self._types = types
        self._end = end
        self._waited = waited
        self._replaced = Replacements()
        self._is_installed = False
        self._explanation: Callable[[Exception], Exception | None] = _none
        self._known: dict[int, tuple[weakref.ref[Any], int, int, int, weakref.ref[_Held]]] = {}
        self._here = _Here()

    def follow(self, work: Any, ticket: int, group_index: int, sequence_id: int) -> None:
        """Record the end of ``work`` once it ends. ``sequence_id`` is 0 for a send or receive."""
        self._install()
        key = id(work)
        known = self._known

        def dropped(_: object) -> None:
            # Nobody can wait for the Work any more, so how it ended will not become known.
            if known.pop(key, None) is not None:
                self._end(ticket, group_index, sequence_id, RecordState.UNKNOWN, 0)

        held = self._here.held
        held.work = work
        known[key] = (weakref.ref(work, dropped), ticket, group_index, sequence_id, weakref.ref(held))
        if not sequence_id:
            self._waited(ticket, POSTED)

    def explain_by(self, explanation: Callable[[Exception], Exception | None]) -> None:
        """Replace an error that a wait raises by its explanation, if there is one."""
        self._explanation = explanation
        self._install()

    def let_go(self) -> None:
        """Release the last Work of this thread. At the thread's next call, the caller has it or has dropped it."""
        self._here.held.work = None

    def _install(self) -> None:
        if not self._is_installed:
            self._is_installed = self._replaced.put(Attribute.WAIT, self._types, self._make)

    def _make(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        known = self._known
        end = self._end
        waited = self._waited
        clock = time.monotonic_ns

        def our_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            entry = known.pop(id(work), None) if known else None
            if entry is not None:
                held = entry[4]()  # of the thread that made the call; None: it has ended
                if held is not None and held.work is work:
                    held.work = None
                if not entry[3]:
                    waited(entry[1], clock())
            state = RecordState.FAILED
            try:
                result = wait(work, *args, **kwargs)
                state = RecordState.FAILED if result is False else RecordState.COMPLETED  # False: it was aborted
                return result
            except Exception as error:
                explanation = self._explanation(error)
                if explanation is None:
                    raise
                raise explanation from error
            finally:
                if entry is not None:
                    end(entry[1], entry[2], entry[3], state, clock())

        our_wait.__doc__ = wait.__doc__
        our_wait.__name__ = "wait"
        keep_out(our_wait)
        return our_wait

    def stop_tracking(self) -> None:
        """Stop tracking and explaining, without restoring ``wait``."""
        self._known.clear()
        self._explanation = _none

    def close(self) -> None:
        """Restore torch's own ``wait`` and stop tracking."""
        self._replaced.undo()
        self._is_installed = False
        self.stop_tracking()
        self._here = _Here()


def _none(error: Exception) -> None:
    """Explain nothing."""
