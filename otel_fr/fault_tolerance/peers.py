"""Passes failed peers to the program's callbacks, and names them in errors."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Final

from otel_fr.communication_errors import is_of_communication

_log = logging.getLogger("otel_fr")

EXIT_CODE: Final = 75
"""Exit code of a rank that ends because a peer has failed: EX_TEMPFAIL of sysexits.h, "try again"."""
MAX_CALLBACKS: Final = 64
MAX_KEPT: Final = 64
"""How many failures are kept for callbacks that are registered later."""
MAX_QUEUED: Final = 256
"""How many failures may wait for one callback. If a callback hangs, further failures are dropped."""


@dataclass(frozen=True)
class PeerFailure:
    """Ranks that have failed and share process groups with this rank.

    Attributes:
        ranks: global ranks.
        reason: one sentence, such as ``"rank 2 was killed by SIGKILL"``.
        process_groups: descriptions of this rank's groups with a member in ``ranks``. A group without a description
            is given by its name.
        incident_id: id of the incident that the collector opened; "": no incident is open yet.
        kind: why the ranks count as failed: ``"ended"``, ``"stuck"``, ``"heartbeat_missed"``, ``"section_overrun"`` or
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
        failure: which ranks have failed, and why.
    """

    def __init__(self, failure: PeerFailure) -> None:
        # Does not say "rank 1 failed": the rank may only be stopped, or silent. The reason says which.
        noun = "rank" if len(failure.ranks) == 1 else "ranks"
        ranks = ", ".join(str(rank) for rank in failure.ranks)
        incident = f" (incident {failure.incident_id})" if failure.incident_id else ""
        super().__init__(f"a call that waited for {noun} {ranks} was ended: {failure.reason}{incident}")
        self.failure = failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failure,)


Callback = Callable[[PeerFailure], object]


class _Subscriber:
    """One callback, and the thread that calls it, so that a callback that hangs blocks no other."""

    def __init__(self, callback: Callback, number: int) -> None:
        self._callback = callback
        self._queue: SimpleQueue[PeerFailure | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"otel-fr-peers-{number}", daemon=True)

    def put(self, failure: PeerFailure) -> None:
        if self._queue.qsize() >= MAX_QUEUED:
            return
        self._queue.put(failure)
        if self._thread.ident is None:
            with contextlib.suppress(RuntimeError):  # no thread can be started now
                self._thread.start()

    def stop(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (failure := self._queue.get()) is not None:
            try:
                self._callback(failure)
            except BaseException:  # noqa: BLE001 - the program's own code; here even SystemExit would end no process
                _log.exception("otel-fr: a callback of on_peer_failure raised an exception")


class Peers:
    """The failed peers that this process knows."""

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
        """Pass a failure to the callbacks. Returns at once."""
        with self._lock:
            self._kept.append(failure)
            for subscriber in self._subscribers.values():
                subscriber.put(failure)

    def withdraw(self, ranks: tuple[int, ...]) -> None:
        """Withdraw failures of ranks that have recovered: callbacks registered from now on do not receive them."""
        with self._lock:
            left = [
                replace(failure, ranks=tuple([rank for rank in failure.ranks if rank not in ranks]))
                for failure in self._kept
            ]
            self._kept = deque([failure for failure in left if failure.ranks], maxlen=MAX_KEPT)

    @property
    def failed(self) -> frozenset[int]:
        """The ranks that are known to have failed."""
        with self._lock:
            return frozenset(rank for failure in self._kept for rank in failure.ranks)

    def forget_all(self) -> None:
        """Forget all failures, because the ranks get new numbers."""
        with self._lock:
            self._kept.clear()
            self._ended.clear()

    # ---- calls that were ended

    def note_ended(self, groups: Mapping[str, PeerFailure]) -> None:
        """Note why otel-fr ends the calls of these groups (c10d's names)."""
        with self._lock:
            self._ended.update(groups)

    def forget_group(self, name: str | None) -> None:
        """Forget a group that no longer exists, or all groups (None)."""
        with self._lock:
            if name is None:
                self._ended.clear()
            else:
                self._ended.pop(name, None)

    @property
    def ended_by(self) -> PeerFailure | None:
        """The last failure for which otel-fr ended calls in a group that still exists.

        If there is none, the last failure that this rank has received, or None: a peer's calls may have been ended, and
        its connections closed, while this rank made no call.
        """
        with self._lock:
            return next(reversed(self._ended.values()), self._kept[-1] if self._kept else None)

    def explain(self, error: BaseException) -> bool:
        """Add the failure, as the last context, to an error that an ended call may have raised.

        Returns:
            True if the error names the failure, from this call or an earlier one.
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
        """Start from scratch in a forked child, which does not have its parent's threads."""
        self.__init__()  # type: ignore[misc]


peers: Final = Peers()
