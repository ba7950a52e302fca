"""The end of calls whose Work has no future (gloo's send, recv, reduce_scatter): recorded when they are waited for.

For the Python engine; the compiled one has ``FollowedWork`` (native/followed_work.hpp), which does the same.

``Work.wait`` is replaced once such a call was made, because torch does not report their end in any other way. A Work is
identified by its Python object. The last one of each thread is held until its caller has it, that is until the thread's
next call; the others are kept by weak references.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from otel_fr.capture.dynamo import keep_out
from otel_fr.capture.replaced import replace
from otel_fr.ring import POSTED, RecordState

End = Callable[[int, int, int, int, int], None]


class Waits:
    """Tracks Works until they are waited for or dropped."""

    def __init__(self, work_type: Any, end: End, waited: Callable[[int, int], None]) -> None:
        """``work_type``: torch's ``Work``. The callbacks must not raise.

        Args:
            end: ``end(ticket, group index, sequence id, state, ns)``: the call has ended.
            waited: ``waited(ticket, ns)``: a thread began to wait for the call then; `POSTED`: no thread waits yet.
                Called for sends and receives only: C++ waits for functional collectives, which Python does not see.
        """
        self._type = work_type
        self._end = end
        self._waited = waited
        self._restore: Callable[[], None] | None = None
        self._known: dict[int, tuple[weakref.ref[Any], int, int, int]] = {}
        self.held: dict[int, Any] = {}
        """Thread -> its last Work that has not been waited for."""

    def follow(self, work: Any, ticket: int, group_index: int, sequence_id: int) -> None:
        """Record the end of ``work`` when it comes. ``sequence_id``: 0 for a send or receive."""
        if self._restore is None:
            self._install()
        key = id(work)
        known = self._known

        def dropped(_: object) -> None:
            # It can no longer be waited for, so how it ended will not become known.
            if known.pop(key, None) is not None:
                self._end(ticket, group_index, sequence_id, RecordState.UNKNOWN, 0)

        known[key] = (weakref.ref(work, dropped), ticket, group_index, sequence_id)
        self.held[threading.get_ident()] = work
        if not sequence_id:
            self._waited(ticket, POSTED)

    def _install(self) -> None:
        wait = self._type.wait
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
            state = RecordState.FAILED if result is False else RecordState.COMPLETED  # False: it was aborted
            end(entry[1], entry[2], entry[3], state, clock())
            return result

        our_wait.__doc__ = wait.__doc__
        our_wait.__name__ = "wait"
        keep_out(our_wait)
        self._restore = replace(self._type, "wait", our_wait)

    def stop_tracking(self) -> None:
        """Stop tracking, without restoring ``wait``."""
        self._known.clear()

    def close(self) -> None:
        """Restore torch's own ``wait`` and stop tracking."""
        if self._restore is not None:
            self._restore()
        self._known.clear()
        self.held.clear()
