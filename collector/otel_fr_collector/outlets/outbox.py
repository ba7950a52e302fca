"""Messages to one receiver over HTTP: bounded, in order, and repeated until they succeed. Nothing waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from otel_fr.redaction import clean
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_client import Answer, HttpClient, HttpError, Workers
from otel_fr_collector.shares import FairQueue, Owner
from otel_fr_collector.storage.backend import StoreError
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_QUEUED = 1_000
"""Waiting messages. If there are more, some are dropped (`otel_fr_collector.shares`)."""
MAX_QUEUED_BYTES = 16 * 1024 * 1024
_RETRYABLE = frozenset({408, 425, 429})
"""Statuses to retry, besides 500 and above. Repeating a request does not change other errors (RFC 9110, 15.5)."""
CONNECT_SECONDS = 2.0
TOTAL_SECONDS = 7.0
"""Seconds for one request, until its response has arrived."""
FIRST_PAUSE = 0.5
"""Seconds of pause after a failed attempt. Doubled after each further failure."""
MAX_PAUSE = 20.0

T = TypeVar("T")


class Outcome(Enum):
    """The outcome of an attempt. The value is the label in metrics."""

    SENT = "sent"
    REJECTED = "rejected"
    """The receiver will never accept the message."""
    FAILED = "failed"
    """The attempt must be repeated."""


class Attempt(NamedTuple):
    """The result of one attempt to notify a receiver.

    Attributes:
        problem: what failed. Empty if the message was sent.
        retry_after: seconds for which the receiver asks to wait. None: it does not ask.
    """

    outcome: Outcome
    problem: str = ""
    retry_after: float | None = None


@dataclass(frozen=True, eq=False)
class Message(Generic[T]):
    """A message to a receiver.

    Attributes:
        about: identifies the incident or the alert.
        content: must not change any more, because another thread reads it.
        size: approximate bytes.
        is_state: a later message about the same thing contains everything, and replaces this one while it waits.
    """

    about: Hashable
    owner: Owner
    content: T
    size: int
    is_state: bool


class Outbox(Generic[T]):
    """A bounded queue for one receiver, and the thread that sends its messages.

    Tenants are served in turn. Messages of one job are in order: one that keeps failing delays only the job's later
    messages.

    Args:
        name: the outlet's name in metrics and logs, without secrets.
        send: makes one attempt with one or more messages. Called in the thread.
        at_once: most messages of one attempt.
        max_pause: longest pause between two attempts, in seconds, unless the receiver asks for more.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[Message[T]]], Attempt],
        metrics: Metrics,
        *,
        at_once: int = 1,
        max_pause: float = MAX_PAUSE,
    ) -> None:
        self._name = name
        self._send = send
        self._metrics = metrics
        self._at_once = at_once
        self._max_pause = max_pause
        self._queue: FairQueue[Message[T]] = FairQueue(MAX_QUEUED, MAX_QUEUED_BYTES)
        self._worker = Workers(1, f"otel-fr {name}")
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._on_their_way: list[Message[T]] = []
        """The messages of the present attempt. They wait again if it fails."""
        self._given_up = 0
        self._log = Throttle()
        metrics.watch_deliveries(name)

    def start(self) -> None:
        """Start sending. Needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def put(self, message: Message[T]) -> None:
        """Queue a message. It replaces waiting messages about the same thing that are states."""
        self.withdraw(message.owner, message.about)
        for loser in self._queue.put(message):
            self._metrics.deliveries.labels(self._name, "dropped").inc()
            self._log_once_a_minute("the queue is full; dropping a delivery", f"of job {loser.job!r}")
        self._wake.set()

    def withdraw(self, owner: Owner, about: Hashable) -> None:
        """Remove waiting messages about something if they are states."""

        def is_old(message: Message[T]) -> bool:
            return message.is_state and message.about == about

        self._queue.discard(owner, is_old)
        self._on_their_way = [message for message in self._on_their_way if not is_old(message)]

    async def stop(self, seconds: float) -> None:
        """Send waiting messages, within ``seconds`` seconds. A failed attempt is not repeated."""
        self._stopping.set()
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
        waiting = len(self._queue) + len(self._on_their_way) + self._given_up
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
            messages = [self._queue.take() for _ in range(min(self._at_once, len(self._queue)))]
            self._on_their_way = messages
            outcome, problem, asked = await self._worker.run(functools.partial(self._attempt, messages))
            again, self._on_their_way = self._on_their_way, []
            self._metrics.deliveries.labels(self._name, outcome.value).inc(len(messages))
            if problem:
                self._log_once_a_minute("could not deliver an incident", problem)
            if outcome is not Outcome.FAILED:
                pause = FIRST_PAUSE
                continue
            if self._stopping.is_set():
                self._given_up += len(again)  # the other messages get one attempt, too
                continue
            for message in reversed(again):
                self._queue.put_back(message)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), max(pause, asked or 0.0))
            pause = min(2 * pause, self._max_pause)

    def _attempt(self, messages: Sequence[Message[T]]) -> Attempt:
        try:
            return self._send(messages)
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
    """The result of an attempt, from the status of the response."""
    if answer.status < 300:
        return Attempt(Outcome.SENT)
    problem = f"status {answer.status}: {answer.body[:200]!r}"
    retryable = answer.status in _RETRYABLE or answer.status >= 500
    return Attempt(Outcome.FAILED if retryable else Outcome.REJECTED, problem, answer.retry_after)
