"""Failed peers, as this rank learns of them: the program's callbacks, and the error that names the failure."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

from otel_fr.communication_errors import is_of_communication

_log = logging.getLogger("otel_fr")

EXIT_CODE: Final = 75
"""Exit code of a rank that ends because a peer has failed: EX_TEMPFAIL of sysexits.h, "try again"."""
MAX_CALLBACKS: Final = 64
MAX_KEPT: Final = 64
"""Failures kept for callbacks that are registered after them."""
MAX_QUEUED: Final = 256
"""Failures that wait for one callback; one that hangs gets no more of them."""


@dataclass(frozen=True)
class PeerFailure:
    """Ranks that have failed, and whose process groups this rank is a member of.

    Attributes:
        ranks: global ranks.
        reason: one sentence, such as ``"rank 2 was killed by SIGKILL"``.
        process_groups: descriptions of this rank's groups that have one of ``ranks`` as a member; of a group without
            a description, its name.
        incident_id: of the incident that the collector opened; "": none is open for it yet.
        kind: why they count as failed: ``"ended"``, ``"stuck"``, ``"heartbeat_missed"``, ``"section_overrun"`` or
            ``"silent"``.
    """

    ranks: tuple[int, ...]
    reason: str
    process_groups: tuple[str, ...]
    incident_id: str
    kind: str = ""


class PeerFailedError(RuntimeError):
    """A collective was ended because a rank that it waits for has failed.

    Attributes:
        failure: which rank, and why.
    """

    def __init__(self, failure: PeerFailure) -> None:
        # Not "rank 1 failed": it may only be stopped, or silent. The reason says which.
        noun = "rank" if len(failure.ranks) == 1 else "ranks"
        ranks = ", ".join(str(rank) for rank in failure.ranks)
        incident = f" (incident {failure.incident_id})" if failure.incident_id else ""
        super().__init__(f"a call that waited for {noun} {ranks} was ended: {failure.reason}{incident}")
        self.failure = failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failure,)


Callback = Callable[[PeerFailure], object]


class _Subscriber:
    """One callback, and the thread that calls it: one that hangs holds up no other."""

    def __init__(self, callback: Callback, number: int) -> None:
        self._callback = callback
        self._queue: SimpleQueue[PeerFailure | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"otel-fr-peers-{number}", daemon=True)
        self._is_started = False

    def put(self, failure: PeerFailure) -> None:
        if self._queue.qsize() >= MAX_QUEUED:
            return
        self._queue.put(failure)
        if not self._is_started:
            self._is_started = True
            self._thread.start()

    def stop(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (failure := self._queue.get()) is not None:
            try:
                self._callback(failure)
            except BaseException:  # noqa: BLE001 - the program's own code; SystemExit ends no process from here either
                _log.exception("otel-fr: a callback of on_peer_failure raised an exception")


class Peers:
    """What this process knows of failed peers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: dict[int, _Subscriber] = {}
        self._numbers = itertools.count(1)
        self._kept: deque[PeerFailure] = deque(maxlen=MAX_KEPT)
        self._ended: dict[str, PeerFailure] = {}

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """See `otel_fr.on_peer_failure`."""
        if not callable(callback):
            raise TypeError(f"on_peer_failure takes a function, not {type(callback).__name__}")
        with self._lock:
            if len(self._subscribers) >= MAX_CALLBACKS:
                raise RuntimeError(f"on_peer_failure: {MAX_CALLBACKS} callbacks are registered, the limit")
            number = next(self._numbers)
            subscriber = self._subscribers[number] = _Subscriber(callback, number)
            for failure in self._kept:
                subscriber.put(failure)

        def cancel() -> None:
            with self._lock:
                if self._subscribers.pop(number, None) is not None:
                    subscriber.stop()

        return cancel

    def deliver(self, failure: PeerFailure) -> None:
        """Pass a failure on to the callbacks. Returns at once."""
        with self._lock:
            self._kept.append(failure)
            for subscriber in self._subscribers.values():
                subscriber.put(failure)

    def withdraw(self, ranks: tuple[int, ...]) -> None:
        """These ranks have not failed after all: callbacks that are registered from now on do not receive them."""
        with self._lock:
            left = [failure for failure in self._kept if not set(failure.ranks) <= set(ranks)]
            self._kept = deque(left, maxlen=MAX_KEPT)

    @property
    def failed(self) -> frozenset[int]:
        """The ranks that have failed, as far as known."""
        with self._lock:
            return frozenset(rank for failure in self._kept for rank in failure.ranks)

    def forget_all(self) -> None:
        """The ranks are numbered anew: what was known of them is over."""
        with self._lock:
            self._kept.clear()
            self._ended.clear()

    # ---- calls that were ended

    def note_ended(self, groups: Mapping[str, PeerFailure]) -> None:
        """The calls of these groups (c10d's names) are being ended because of these failures."""
        with self._lock:
            self._ended.update(groups)

    def forget_group(self, name: str | None) -> None:
        """The group is gone; None: all are."""
        with self._lock:
            if name is None:
                self._ended.clear()
            else:
                self._ended.pop(name, None)

    @property
    def ended_by(self) -> PeerFailure | None:
        """The last failure that ended calls in a group that is still there; None: there is none.

        A peer's calls may have been ended, and its connections closed, while this rank was in code of its own: without
        such a group it is the last failure that this rank received.
        """
        with self._lock:
            return next(reversed(self._ended.values()), self._kept[-1] if self._kept else None)

    def explain(self, error: BaseException) -> bool:
        """Make the failure part of an error that an ended call may have raised: the last of its contexts.

        Returns:
            True: the error names the failure, now or before.
        """
        failure = self.ended_by
        if failure is None:
            return False
        last, seen = error, {id(error)}
        while not isinstance(last, PeerFailedError):
            before = last.__cause__ or last.__context__
            if before is None or id(before) in seen:
                break
            seen.add(id(before))
            last = before
        if isinstance(last, PeerFailedError):
            return True
        if not is_of_communication(error):
            return False
        last.__context__ = PeerFailedError(failure)
        last.__suppress_context__ = False
        return True

    def after_fork(self) -> None:
        """In a forked child, whose parent's threads are not there."""
        self.__init__()  # type: ignore[misc]


peers: Final = Peers()
"""Of this process."""
