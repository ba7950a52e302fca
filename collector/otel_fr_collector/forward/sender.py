"""Sends the requests in one backend's queue, in order. A request that fails must not block the others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from dataclasses import dataclass
from typing import NamedTuple

from otel_fr.redaction import clean
from otel_fr_collector.forward.backends import PARALLEL, Backend, BusyError, RefusedError
from otel_fr_collector.forward.queues import Queues
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.journal import Request
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

FIRST_BACKOFF = 0.25
"""Seconds before the second attempt. Doubled for each further attempt."""
MAX_BACKOFF = 30.0
IN_ORDER = 16
"""A queue of at most this many requests is sent one by one, in order. A longer queue is sent `PARALLEL` at a time."""
MAX_ATTEMPTS = 20
"""A request is dropped after this many failed attempts if others succeeded in between: then the request is at fault."""
UNREACHED_IN_ORDER = 8
"""Attempts without a connection before other requests are tried. Mostly the backend is down, but a request may be what
brings it down."""


class _Failure(NamedTuple):
    """A failed attempt.

    Attributes:
        reached: there was a connection.
        asked: seconds for which the backend asks to wait.
    """

    reached: bool
    asked: float


@dataclass
class _Failed:
    """A request that has failed. Other requests are tried before it.

    Attributes:
        at: the event loop's time at which it is tried again.
        failures: how many attempts have failed.
        strikes: attempts that failed although other requests were accepted or rejected since the attempt before.
        ended: how many requests had been accepted or rejected at its last attempt.
    """

    at: float = 0.0
    failures: int = 0
    strikes: int = 0
    ended: int = 0


class Sender:
    """Sends to one backend.

    When a request fails, all requests wait, because mostly the backend is down. Then others are tried before it. If
    these are accepted, the failed request is at fault: from then on its failures delay only itself.
    """

    def __init__(self, backend: Backend, queues: Queues, metrics: Metrics) -> None:
        self.backend = backend
        self._name = backend.name
        self._queues = queues
        self._queue = queues.waiting[backend.name]
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._is_ending = False
        self._failed: dict[int, _Failed] = {}
        self._ended = 0
        self._downs = 0
        """Failed attempts since a request was accepted or rejected."""
        self._resume_at = 0.0
        self._log = Throttle()

    def wake(self) -> None:
        """Note that there is a new request."""
        self._wake.set()

    def end(self) -> None:
        """Send waiting requests, and then end `run`. What fails now stays in the file, if there is one."""
        self._is_ending = True
        self._wake.set()

    def complain(self, what: str, why: object = "") -> None:
        """Log a problem. The same problem is logged at most once a minute."""
        if self._log.allows(what):
            _log.warning("%s: %s%s", self._name, what, clean(f": {why}") if why else "")

    async def run(self) -> None:
        """Send requests until `end` was called and nothing is left to do."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            batch = self._next(loop.time())
            if batch:
                await self._send(batch)
            elif self._is_ending and (not self._queue or self._queues.is_durable):
                return
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._wait(loop.time()))

    def _next(self, now: float) -> list[Request]:
        """The requests that must be sent now."""
        if now < self._resume_at:
            return []
        width = 1 if len(self._queue) <= IN_ORDER else PARALLEL
        found = list(itertools.islice((one for one in self._queue.values() if one.id not in self._failed), width))
        if len(found) < width:
            # Some have expired.
            self._failed = {number: one for number, one in self._failed.items() if number in self._queue}
            due = sorted((one.failures, number) for number, one in self._failed.items() if one.at <= now)
            found += [self._queue[number] for _, number in due[: width - len(found)]]
        return found

    def _wait(self, now: float) -> float | None:
        """Seconds until there is something to send. None: until there is a new request."""
        if not self._queue:
            return None
        if now < self._resume_at:
            return self._resume_at - now
        return min((one.at for one in self._failed.values()), default=now) - now

    async def _send(self, batch: list[Request]) -> None:
        results = await asyncio.gather(*(self._attempt(request) for request in batch))
        failures = [(request, result) for request, result in zip(batch, results, strict=True) if result is not None]
        ended = [request.id for request, result in zip(batch, results, strict=True) if result is None]
        if ended:
            self._ended += len(ended)
            self._downs = 0
        now = asyncio.get_running_loop().time()
        is_new = [self._note(request, failure, now) for request, failure in failures]
        ended += [request.id for request, _ in failures if self._has_struck_out(request)]
        if any(is_new):
            self._downs += 1
            wait = max(_backoff(self._downs), *(failure.asked for _, failure in failures))
            self._resume_at = now + wait * random.uniform(1.0, 1.2)  # noqa: S311  spreads load, keeps nothing secret
        if ended:
            for number in ended:
                self._failed.pop(number, None)
            await self._queues.remove(self._name, ended)

    def _note(self, request: Request, failure: _Failure, now: float) -> bool:
        """Record a failed attempt. Return whether the backend may be at fault."""
        one = self._failed.get(request.id)
        if one is None:
            if not failure.reached and (self._downs + 1) % UNREACHED_IN_ORDER:
                return True
            one = self._failed[request.id] = _Failed(ended=self._ended)
        one.strikes += self._ended > one.ended
        one.failures += 1
        one.ended = self._ended
        one.at = now + max(_backoff(one.failures), failure.asked)
        return not one.strikes

    def _has_struck_out(self, request: Request) -> bool:
        one = self._failed.get(request.id)
        if one is None or one.strikes < MAX_ATTEMPTS:
            return False
        self._metrics.forward_dropped.labels(self._name, "retries_exhausted").inc()
        return True

    async def _attempt(self, request: Request) -> _Failure | None:
        """Send one request. None: the backend has accepted it, or will never accept it."""
        name = self._name
        try:
            await self.backend.send(request.signal, request.data)
        except BusyError as error:
            self.complain("requests wait: it accepts none now", error)
            failure = _Failure(error.reached, error.after or 0.0)
        except RefusedError as error:
            self.complain("it rejected a request; dropping it", error)
            self._metrics.forward_dropped.labels(name, "rejected").inc()
            return None
        except Exception as error:  # noqa: BLE001  an unexpected response must not end the sending to this backend
            self._metrics.errors.labels("forward").inc()
            self.complain("unexpected response", f"{type(error).__name__}: {error}")
            failure = _Failure(reached=True, asked=MAX_BACKOFF)
        else:
            self._metrics.forward_sent.labels(request.signal, name).inc()
            return None
        return failure


def _backoff(attempts: int) -> float:
    return min(FIRST_BACKOFF * 2.0 ** min(attempts - 1, 10), MAX_BACKOFF)
