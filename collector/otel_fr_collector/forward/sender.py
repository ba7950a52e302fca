"""Sends the requests in one backend's queue: in order, unless one of them fails while others are accepted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from otel_fr_collector.forward.backends import PARALLEL, Backend, BusyError, RefusedError
from otel_fr_collector.forward.spool import Item, Spool, SpoolError
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.redaction import clean
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

FIRST_BACKOFF = 0.25
"""Seconds before the second attempt; doubled for each further attempt."""
MAX_BACKOFF = 30.0
IN_ORDER = 16
"""A queue of at most this many requests is sent one by one, in order; a longer one `PARALLEL` at a time."""
MAX_ATTEMPTS = 20
"""Attempts after which a request is dropped if others were accepted meanwhile: then the request is at fault."""
MAX_ASIDE = 64
"""Requests that are repeated on their own; if more fail, the backend is at fault."""
UNREACHED_IN_ORDER = 8
"""Attempts that fail without a connection until others are tried: it is the backend that is down, but a request may
be what brings it down."""
SPOOL_RETRY = 1.0
"""Seconds after which a queue that cannot be read or written is tried again."""


class _Outcome(Enum):
    ENDED = 1
    """Accepted, or dropped."""
    FAILED = 2
    UNREACHED = 3
    """Failed: there was no connection."""


class _Attempt(NamedTuple):
    """``asked``: seconds for which the backend asks to wait."""

    item: Item
    outcome: _Outcome
    asked: float = 0.0


@dataclass
class _Aside:
    """A request that failed while others were accepted: ``at``, in the loop's time, it is repeated."""

    at: float
    attempts: int
    backoff: float = FIRST_BACKOFF


class Sender:
    """Sends to one backend.

    A request that fails is repeated, and with it the queue waits, because mostly the backend is down. Where it has
    answered, the next attempt is made with the requests after it; if those are accepted, the failed one is set aside
    and repeated on its own.

    Attributes:
        idle: nothing is left to do, or at the end nothing that cannot wait in the file.
    """

    def __init__(self, backend: Backend, spool: Spool, metrics: Metrics) -> None:
        self.backend = backend
        self.idle = asyncio.Event()
        self._name = backend.name
        self._ending = asyncio.Event()
        self._spool = spool
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._aside_wake = asyncio.Event()
        self._sent: set[int] = set()
        """Accepted or rejected by the backend, but not yet removed from the queue because the disk is full."""
        self._failed: dict[int, int] = {}
        """Failed attempts of requests, while none was accepted."""
        self._passed: set[int] = set()
        """Failed requests, of which others are tried first."""
        self._aside: dict[int, _Aside] = {}
        self._is_working = True
        """The last attempts were not in vain."""
        self._log = Throttle()

    def wake(self) -> None:
        """There is a new request."""
        self.idle.clear()
        self._wake.set()

    def end(self) -> None:
        """Send what waits; what fails now stays in the file, if there is one."""
        self._ending.set()
        self._wake.set()

    def complain(self, what: str, why: object = "") -> None:
        """Log a problem; the same one at most once a minute."""
        if self._log.allows(what):
            _log.warning("%s: %s%s", self._name, what, clean(f": {why}") if why else "")

    async def run(self) -> None:
        """Send, until cancelled."""
        await asyncio.gather(self._send_queue(), self._send_aside())

    async def _send_queue(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            self._wake.clear()
            waiting = self._spool.usage[self._name][0] - len(self._aside)
            width = 1 if waiting <= IN_ORDER else PARALLEL
            try:
                skip = self._sent | self._passed | self._aside.keys()
                items = await self._spool.head(self._name, width, skip)
                if not items:
                    await self._rest()
                    continue
                attempts = await asyncio.gather(*(self._attempt(item) for item in items))
                await self._remove_sent()
            except SpoolError as error:
                self.complain("its queue cannot be read or written", error)
                if await self._pause(SPOOL_RETRY):
                    return
                continue
            failed = [attempt for attempt in attempts if attempt.outcome is not _Outcome.ENDED]
            self._is_working = len(failed) < len(attempts)
            self._take_failed(failed)
            if self._is_working:
                backoff = FIRST_BACKOFF
            if failed:
                wait = max(backoff, *(attempt.asked for attempt in failed))
                backoff = min(2 * backoff, MAX_BACKOFF)
                if await self._pause(wait * random.uniform(1.0, 1.2)):  # noqa: S311  spreads load, keeps nothing secret
                    return

    async def _rest(self) -> None:
        """Nothing is to be sent now, or only what was passed over."""
        if self._passed:
            self._passed.clear()
            return
        if not self._aside or (self._ending.is_set() and self._spool.is_durable):
            self.idle.set()
        await self._wake.wait()

    async def _pause(self, seconds: float) -> bool:
        """Wait; True: the collector stops, and the queued requests are safe in the file."""
        if not self._spool.is_durable:
            await asyncio.sleep(seconds)
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)
        if self._ending.is_set():
            self.idle.set()
        return self._ending.is_set()

    def _take_failed(self, failed: Sequence[_Attempt]) -> None:
        """Decide which requests the next attempt is made with."""
        for attempt in failed:
            number = attempt.item.id
            self._failed[number] = self._failed.get(number, 0) + 1
            if attempt.outcome is _Outcome.FAILED or self._failed[number] % UNREACHED_IN_ORDER == 0:
                self._passed.add(number)
        if self._is_working:
            self._set_aside({attempt.item.id: attempt.asked for attempt in failed})
        elif len(self._passed) >= IN_ORDER:
            self._passed.clear()

    def _set_aside(self, asked: dict[int, float]) -> None:
        """Others are accepted: those that have failed are repeated on their own."""
        now = asyncio.get_running_loop().time()
        for number in sorted(self._failed):
            if len(self._aside) < MAX_ASIDE:
                self._aside[number] = _Aside(now + asked.get(number, 0.0), attempts=1)
        self._failed.clear()
        self._passed.clear()
        self._aside_wake.set()

    async def _send_aside(self) -> None:
        """Repeat the requests that were set aside, one by one, each after its own pauses."""
        loop = asyncio.get_running_loop()
        while True:
            self._aside_wake.clear()
            number = min(self._aside, key=lambda number: self._aside[number].at, default=None)
            if number is None or (wait := self._aside[number].at - loop.time()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._aside_wake.wait(), None if number is None else wait)
                continue
            try:
                await self._repeat(number, self._aside[number])
            except SpoolError as error:
                self.complain("its queue cannot be read or written", error)
                await asyncio.sleep(SPOOL_RETRY)

    async def _repeat(self, number: int, aside: _Aside) -> None:
        item = await self._spool.get(self._name, number)
        if item is not None:
            attempt = await self._attempt(item, is_last=aside.attempts + 1 >= MAX_ATTEMPTS and self._is_working)
            await self._remove_sent()
            if attempt.outcome is not _Outcome.ENDED:
                aside.attempts += self._is_working and attempt.outcome is _Outcome.FAILED
                aside.at = asyncio.get_running_loop().time() + max(aside.backoff, attempt.asked)
                aside.backoff = min(2 * aside.backoff, MAX_BACKOFF)
                return
        del self._aside[number]
        self._wake.set()

    async def _attempt(self, item: Item, *, is_last: bool = False) -> _Attempt:
        """Send one request; with ``is_last`` it is dropped if it fails."""
        name = self._name
        outcome, asked = _Outcome.ENDED, 0.0
        try:
            await self.backend.send(item.signal, item.data)
        except BusyError as error:
            self.complain("requests wait, it does not accept them", error)
            outcome, asked = (_Outcome.FAILED if error.reached else _Outcome.UNREACHED), error.after or 0.0
        except RefusedError as error:
            self.complain("it rejected a request, which is dropped", error)
            self._metrics.forward_dropped.labels(name, "rejected").inc()
        except Exception as error:  # noqa: BLE001  an unexpected response must not end the sending to this backend
            self._metrics.errors.labels("forward").inc()
            self.complain("unexpected response", f"{type(error).__name__}: {error}")
            outcome, asked = _Outcome.FAILED, MAX_BACKOFF
        else:
            self._metrics.forward_sent.labels(item.signal, name).inc()
        if outcome is _Outcome.FAILED and is_last:
            self._metrics.forward_dropped.labels(name, "retries_exhausted").inc()
            outcome = _Outcome.ENDED
        if outcome is _Outcome.ENDED:
            self._sent.add(item.id)
        else:
            self._metrics.forward_attempts_failed.labels(name).inc()
        return _Attempt(item, outcome, asked)

    async def _remove_sent(self) -> None:
        if self._sent:
            removed = frozenset(self._sent)
            await self._spool.done(self._name, removed)
            self._sent -= removed
            for number in removed:
                self._failed.pop(number, None)
