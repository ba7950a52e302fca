"""Deliveries over HTTP, repeated until they succeed. The event loop never waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from otel_fr.redaction import clean
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_client import Answer, HttpClient, HttpError, Workers
from otel_fr_collector.shares import FairQueue, Owner
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.storage.store import Store
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_QUEUED = 1_000
"""Deliveries that wait; beyond it some are dropped (`otel_fr_collector.shares`)."""
MAX_QUEUED_BYTES = 16 * 1024 * 1024
_RETRYABLE = frozenset({408, 425, 429})
"""Besides 500 to 599; other errors will not change by a repetition (RFC 9110, 15.5)."""
CONNECT_SECONDS = 2.0
TOTAL_SECONDS = 7.0
"""For one request, until its response has arrived."""
FIRST_PAUSE = 0.5
"""Seconds after a failed attempt; doubled for each further one."""
MAX_PAUSE = 20.0

T = TypeVar("T")


class Outcome(Enum):
    """What became of an attempt; the value is the label in metrics."""

    SENT = "sent"
    REJECTED = "rejected"
    """The receiver will not accept it, now or later."""
    FAILED = "failed"
    """To be repeated."""


class Attempt(NamedTuple):
    """One attempt to deliver.

    Attributes:
        problem: empty if it was sent.
        retry_after: seconds for which the receiver asks to wait; None: it does not.
    """

    outcome: Outcome
    problem: str = ""
    retry_after: float | None = None


def deliver_once(store: Store | None, outlet: str, incident: str, mark: str, deliver: Callable[[], Attempt]) -> Attempt:
    """Make one attempt, unless any collector has sent this change of the incident to the receiver before.

    Args:
        store: knows what was delivered; None: nobody does.
        mark: of the change (`Incident.mark`).

    Raises:
        StoreError: another collector is about to tell the receiver.
    """
    if store is None:
        return deliver()
    with store.turn(outlet, incident, mark) as turn:
        if turn.is_told:
            return Attempt(Outcome.SENT)
        attempt = deliver()
        turn.is_told = attempt.outcome is not Outcome.FAILED
        return attempt


class DeliveryQueue(Generic[T]):
    """A bounded queue for one receiver, and the one thread that delivers what is in it.

    Tenants are served in turn, and a delivery that keeps failing delays only deliveries of its own job, which are in
    order.

    Args:
        name: the outlet in metrics and logs; without secrets.
        deliver: makes one attempt, in the thread.
    """

    def __init__(self, name: str, deliver: Callable[[T], Attempt], metrics: Metrics) -> None:
        self._name = name
        self._deliver = deliver
        self._metrics = metrics
        self._queue: FairQueue[T] = FairQueue(MAX_QUEUED, MAX_QUEUED_BYTES)
        self._worker = Workers(1, f"otel-fr {name}")
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._in_progress = self._given_up = 0
        self._log = Throttle()
        metrics.watch_deliveries(name)

    def start(self) -> None:
        """Start to deliver; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, item: T, owner: Owner, size: int, supersedes: Callable[[T], bool]) -> None:
        """Queue a delivery of ``size`` bytes, in place of the waiting ones of its owner that it supersedes."""
        for loser in self._queue.put(item, owner, size, supersedes):
            self._metrics.deliveries.labels(self._name, "dropped").inc()
            self._log_once_a_minute("the queue is full; dropping a delivery", f"of job {loser.job!r}")
        self._wake.set()

    async def stop(self, seconds: float) -> None:
        """Deliver what waits, within ``seconds`` seconds; a failed attempt is not repeated."""
        self._stopping.set()
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
        waiting = len(self._queue) + self._in_progress + self._given_up
        if waiting:
            _log.warning("%s: %d deliveries still pending at shutdown", self._name, waiting)

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            while not self._queue:
                if self._stopping.is_set():
                    return
                self._wake.clear()
                await self._wake.wait()
            item, owner, size = self._queue.take()
            self._in_progress = 1
            outcome, problem, asked = await self._worker.run(functools.partial(self._attempt, item))
            self._in_progress = 0
            self._metrics.deliveries.labels(self._name, outcome.value).inc()
            if problem:
                self._log_once_a_minute("could not deliver an incident", problem)
            if outcome is not Outcome.FAILED:
                pause = FIRST_PAUSE
                continue
            if self._stopping.is_set():
                self._given_up += 1  # the others have their one attempt, too
                continue
            self._queue.put_back(item, owner, size)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), max(pause, asked or 0.0))
            pause = min(2 * pause, MAX_PAUSE)

    def _attempt(self, item: T) -> Attempt:
        try:
            return self._deliver(item)
        except (HttpError, StoreError) as error:
            return Attempt(Outcome.FAILED, str(error))
        except Exception as error:  # noqa: BLE001  an unexpected response must not end the deliveries
            self._metrics.errors.labels("delivery").inc()
            return Attempt(Outcome.REJECTED, repr(error))

    def _log_once_a_minute(self, what: str, why: str) -> None:
        if self._log.allows(what):
            _log.warning("%s: %s: %s", self._name, what, clean(why)[:300])


def make_client() -> HttpClient:
    """A client for one receiver."""
    return HttpClient(connect=CONNECT_SECONDS, total=TOTAL_SECONDS)


def attempt_of(answer: Answer) -> Attempt:
    """The outcome of a delivery by the status of the response."""
    if answer.status < 300:
        return Attempt(Outcome.SENT)
    problem = f"status {answer.status}: {answer.body[:200]!r}"
    retryable = answer.status in _RETRYABLE or answer.status >= 500
    return Attempt(Outcome.FAILED if retryable else Outcome.REJECTED, problem, answer.retry_after)
