"""The end of calls whose Work has no future (gloo's send, recv, reduce_scatter): they end when they are waited for.

``Work.wait`` is replaced, and only once such a call was made: torch tells nobody else of their end. A Work is known
by its Python object. That object lives on after the operator because the last one of each thread is held until its
caller has it, that is until the thread's next call; the others are known by weak references.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from otel_fr.ring import POSTED, RecordState

End = Callable[[int, int, int, int, int], None]


class Waits:
    """Follows Works until they are waited for, or dropped."""

    def __init__(self, work_type: Any, end: End, waited: Callable[[int, int], None]) -> None:
        """``work_type``: torch's ``Work``. Neither of the others raises.

        Args:
            end: ``end(ticket, group index, sequence id, state, ns)``: it has ended.
            waited: ``waited(ticket, ns)``: somebody waits for it since then; `POSTED`: nobody does yet. Of sends and
                receives only: C++ waits for functional collectives, and Python does not see it.
        """
        self._type = work_type
        self._end = end
        self._waited = waited
        self._wait: Any = None
        self._ours: Any = None
        self._known: dict[int, tuple[weakref.ref[Any], int, int, int]] = {}
        self.held: dict[int, Any] = {}
        """By thread: its last Work, not yet waited for."""

    def follow(self, work: Any, ticket: int, group_index: int, sequence_id: int) -> None:
        """Record the end of ``work`` when it comes. ``sequence_id``: 0 for a send or receive."""
        if self._ours is None:
            self._install()
        key = id(work)
        known = self._known

        def dropped(_: object) -> None:
            # Nobody can wait for it any more, so nobody will know how it ended.
            if known.pop(key, None) is not None:
                self._end(ticket, group_index, sequence_id, RecordState.UNKNOWN, 0)

        known[key] = (weakref.ref(work, dropped), ticket, group_index, sequence_id)
        self.held[threading.get_ident()] = work
        if not sequence_id:
            self._waited(ticket, POSTED)

    def _install(self) -> None:
        wait = self._wait = self._type.wait
        known = self._known
        held = self.held
        end = self._end
        waited = self._waited
        clock = time.monotonic_ns

        def our_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            entry = known.pop(id(work), None) if known else None
            if entry is None:
                return wait(work, *args, **kwargs)
            held.pop(threading.get_ident(), None)
            if not entry[3]:
                waited(entry[1], clock())
            try:
                result = wait(work, *args, **kwargs)
            except BaseException:
                end(entry[1], entry[2], entry[3], RecordState.FAILED, clock())
                raise
            end(entry[1], entry[2], entry[3], RecordState.COMPLETED, clock())
            return result

        our_wait.__doc__ = wait.__doc__
        our_wait.__name__ = "wait"
        self._ours = self._type.wait = our_wait

    def forget(self) -> None:
        """Record no more ends."""
        self._known.clear()

    def close(self) -> None:
        """Put torch's own ``wait`` back, and let go of everything."""
        if self._ours is not None and getattr(self._type, "wait", None) is self._ours:
            self._type.wait = self._wait
        self._known.clear()
        self.held.clear()
