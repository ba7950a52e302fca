"""Deliveries over HTTP from a thread: in order, retried until they succeed. The event loop never waits for them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

import urllib3

from otel_fr_collector.metrics import Metrics

_log = logging.getLogger(__name__)

MAX_QUEUED = 1_000
"""Deliveries that wait; beyond it the oldest are dropped."""
RETRIES = urllib3.Retry(
    total=4,
    backoff_factor=0.5,
    backoff_max=10.0,
    status_forcelist=(408, 425, 429, 500, 502, 503, 504),
    allowed_methods=None,
    redirect=0,
    raise_on_status=False,
)
"""The quick retries of one attempt. ``Retry-After`` is honoured."""
TIMEOUT = urllib3.Timeout(connect=2.0, read=5.0)
PAUSE = 20.0
"""Seconds between two attempts."""
LOG_EVERY = 60.0

T = TypeVar("T")


class Outcome(Enum):
    """What became of an attempt; the value is the label in metrics."""

    SENT = "sent"
    REJECTED = "rejected"
    """The receiver will not accept it, now or later."""
    FAILED = "failed"
    """To be repeated."""


class DeliveryQueue(Generic[T]):
    """A bounded queue, and the thread that delivers what is in it.

    Args:
        name: the outlet in metrics and logs; without secrets.
        deliver: makes one attempt, in the thread; returns the outcome and, unless it was sent, the problem.
    """

    def __init__(self, name: str, deliver: Callable[[T], tuple[Outcome, str]], metrics: Metrics) -> None:
        self._name = name
        self._deliver = deliver
        self._metrics = metrics
        self._queue: deque[T] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"otel-fr {name}", daemon=True)
        self._logged = float("-inf")
        metrics.watch_deliveries(name, lambda: len(self._queue), MAX_QUEUED)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: T, supersedes: Callable[[T], bool]) -> None:
        """Queue a delivery, in place of the waiting ones that it supersedes."""
        with self._changed:
            kept = [
                old for at, old in enumerate(self._queue) if at == 0 or not supersedes(old)
            ]  # the first may be in progress
            if len(kept) < len(self._queue):
                self._queue = deque(kept)
            if len(self._queue) >= MAX_QUEUED:
                self._queue.popleft()
                self._metrics.deliveries.labels(self._name, "dropped").inc()
            self._queue.append(item)
            self._changed.notify()

    async def stop(self, seconds: float) -> None:
        """Deliver what waits, within ``seconds`` seconds; a failed attempt is not repeated."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, seconds)
        if self._queue:
            _log.warning("%s: %d deliveries were still waiting at shutdown", self._name, len(self._queue))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._stopping:
                    self._changed.wait()
                if not self._queue:
                    return
                item = self._queue[0]
            outcome, problem = self._attempt(item)
            self._metrics.deliveries.labels(self._name, outcome.value).inc()
            if problem:
                self._log_problem(problem)
            with self._changed:
                if outcome is not Outcome.FAILED:
                    if (
                        self._queue and self._queue[0] is item
                    ):  # else it was dropped meanwhile because the queue was full
                        self._queue.popleft()
                elif self._stopping:
                    return
                else:
                    self._changed.wait_for(lambda: self._stopping, PAUSE)

    def _attempt(self, item: T) -> tuple[Outcome, str]:
        try:
            return self._deliver(item)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return Outcome.FAILED, str(error)
        except Exception as error:  # noqa: BLE001  an unexpected response must not end the deliveries
            self._metrics.errors.labels("delivery").inc()
            return Outcome.REJECTED, repr(error)

    def _log_problem(self, problem: str) -> None:
        now = time.monotonic()
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            _log.warning("%s: an incident could not be delivered: %s", self._name, problem[:300])


def outcome_of(response: urllib3.BaseHTTPResponse) -> tuple[Outcome, str]:
    """The outcome of a delivery by the status of the response."""
    if response.status < 300:
        return Outcome.SENT, ""
    problem = f"status {response.status}: {response.data[:200]!r}"
    retryable = response.status in RETRIES.status_forcelist or response.status >= 500
    return (Outcome.FAILED if retryable else Outcome.REJECTED), problem
