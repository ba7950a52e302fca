"""Requests sent on to OTLP backends, each behind its own bounded queue; nothing here ever holds up the correlation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence

from otel_fr_collector.forward.backends import PARALLEL, Backend, BusyError, RefusedError
from otel_fr_collector.forward.sampling import Selection
from otel_fr_collector.forward.spool import Item, Put, Spool, SpoolError
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import TRACES
from otel_fr_collector.redaction import clean

_log = logging.getLogger(__name__)

FIRST_BACKOFF = 0.25
"""Seconds before the second attempt; doubled for each further one."""
MAX_BACKOFF = 30.0
MAX_ASKED = 300.0
"""Seconds that a backend may ask to be left in peace for at most."""
IN_ORDER = 16
"""Up to so many waiting requests are sent one by one, in order; a longer queue is sent `PARALLEL` at a time."""
GIVE_UP = 20
"""Attempts after which a request is dropped, if others were taken meanwhile: it is the request that is wrong."""
CLEAN_EVERY = 30.0
LOG_EVERY = 60.0
BIG = 1 << 20
"""Bytes from which on a request is searched for wanted traces outside the event loop."""


class Forwarder:
    """Sends requests on.

    Args:
        signals: those that are sent on.
        selection: chooses traces; None: all are sent on, bytes unchanged.
        max_age: seconds after which what no backend has taken is dropped.
    """

    def __init__(
        self,
        spool: Spool,
        backends: Sequence[Backend],
        metrics: Metrics,
        *,
        signals: frozenset[str] = frozenset({TRACES}),
        selection: Selection | None = None,
        max_age: float = 86_400.0,
    ) -> None:
        self._spool = spool
        self._metrics = metrics
        self._signals = signals
        self._selection = selection
        self._max_age = max_age
        self._lanes = [_Lane(backend, spool, metrics) for backend in backends]
        self._tasks: list[asyncio.Task[None]] = []
        self._logged = float("-inf")
        metrics.watch_forwarding(spool.usage, spool.max_bytes)

    def start(self) -> None:
        """Begin to send; needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(lane.run()) for lane in self._lanes]
        self._tasks.append(loop.create_task(self._clean()))
        for name, count in self._spool.others().items():
            _log.warning("%d requests wait for %s, which is no --forward backend any more", count, name)

    async def take(self, signal: str, data: bytes) -> None:
        """Queue what of one request is to be sent on. When this returns it is as durable as the queue is.

        Raises:
            SpoolError: it could not be queued, so its sender must keep it.
        """
        if not data or signal not in self._signals:
            return
        if signal == TRACES and self._selection is not None:
            self._selection.hold(data)
            if len(data) < BIG:
                data = self._selection.select(data)
            else:
                data = await asyncio.to_thread(self._selection.select, data)
            if not data:
                return
        try:
            put = await self._spool.put(signal, data)
        except SpoolError as error:
            self._metrics.forward_dropped.labels("", "not_stored").inc()
            self._complain(error)
            raise
        self._after(signal, put)

    def offer(self, signal: str, data: bytes, queued: Callable[[], None] | None = None) -> None:
        """Queue a request of the collector's own, without waiting; one that cannot be queued is dropped and counted.

        Args:
            queued: called in the event loop once the request is as durable as the queue is.
        """
        if signal not in self._signals:
            return
        loop = asyncio.get_running_loop()
        future = self._spool.put_later(signal, data)
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._offered, signal, done, queued))

    def keep_trace(self, trace: bytes) -> None:
        """An incident shows in this trace, so its spans are sent on, whatever the mode."""
        if self._selection is not None:
            for data in self._selection.mark(trace):
                self.offer(TRACES, data)

    async def stop(self, seconds: float) -> None:
        """Send what is queued for at most so long. The rest stays in the file; without one it is dropped."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._drain(), seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes:
            await lane.backend.close()
        self._spool.close()
        if not self._spool.is_durable:
            for name, (count, _) in self._spool.usage.items():
                self._metrics.forward_dropped.labels(name, "shutdown").inc(count)
                if count:
                    _log.warning("%d requests for %s are lost at the end; --data keeps them", count, name)

    async def _drain(self) -> None:
        # What was offered last is still on its way to the queue: until it is there an idle lane says nothing.
        with contextlib.suppress(SpoolError):
            await self._spool.settle()
        for lane in self._lanes:
            lane.ending.set()
        for lane in self._lanes:
            await lane.idle.wait()

    async def _clean(self) -> None:
        while True:
            try:
                for name, count in (await self._spool.drop_old(self._max_age)).items():
                    self._metrics.forward_dropped.labels(name, "expired").inc(count)
                    _log.warning("%d requests for %s are dropped: it did not take them in time", count, name)
            except SpoolError as error:
                self._complain(error)
            await asyncio.sleep(CLEAN_EVERY)

    def _after(self, signal: str, put: Put) -> None:
        if put.repeated:
            self._metrics.forward_deduplicated.inc()
        for name in put.kept:
            self._metrics.forward_enqueued.labels(signal, name).inc()
        for name in put.full:
            self._metrics.forward_dropped.labels(name, "queue_full").inc()
        for lane in self._lanes:
            if lane.backend.name in put.kept:
                lane.wake()
            elif lane.backend.name in put.full:
                lane.complain("its queue is full, so requests are dropped")

    def _offered(self, signal: str, done: concurrent.futures.Future[Put], queued: Callable[[], None] | None) -> None:
        error = done.exception()
        if error is None:
            self._after(signal, done.result())
            if queued is not None:
                queued()
        else:
            self._metrics.forward_dropped.labels("", "not_stored").inc()
            self._complain(error)

    def _complain(self, error: BaseException) -> None:
        if time.monotonic() - self._logged >= LOG_EVERY:
            self._logged = time.monotonic()
            _log.error("requests cannot be queued for the backends: %s", error)


class _Lane:
    """The way to one backend."""

    def __init__(self, backend: Backend, spool: Spool, metrics: Metrics) -> None:
        self.backend = backend
        self.idle = asyncio.Event()
        self.ending = asyncio.Event()
        self._spool = spool
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._sent: set[int] = set()
        """Taken or refused by the backend, but not yet struck off the queue, for the disk is full."""
        self._failures: dict[int, tuple[int, int]] = {}
        """Attempts of each request that failed, and how many others had been taken before the first."""
        self._taken = 0
        self._logged: dict[str, float] = {}

    def wake(self) -> None:
        self.idle.clear()
        self._wake.set()

    def complain(self, what: str, why: object = "") -> None:
        """Log it, the same thing not more often than once a minute."""
        now = time.monotonic()
        if now - self._logged.get(what, float("-inf")) >= LOG_EVERY:
            self._logged[what] = now
            _log.warning("%s: %s%s", self.backend.name, what, clean(f": {why}") if why else "")

    async def run(self) -> None:
        backoff = FIRST_BACKOFF
        while True:
            self._wake.clear()
            waiting = self._spool.usage[self.backend.name][0]
            width = 1 if waiting <= IN_ORDER else PARALLEL
            try:
                items = await self._spool.head(self.backend.name, width, self._sent)
                if not items:
                    self.idle.set()
                    await self._wake.wait()
                    continue
                outcomes = await asyncio.gather(*(self._send(item) for item in items))
                await self._strike_off()
            except SpoolError as error:
                self.complain("its queue cannot be read or written", error)
                await asyncio.sleep(1.0)
                continue
            asked = [outcome for outcome in outcomes if outcome is not None]
            if not asked:
                backoff = FIRST_BACKOFF
                continue
            wait = min(max(backoff, *asked), MAX_ASKED)
            backoff = min(2 * backoff, MAX_BACKOFF)
            wait *= random.uniform(1.0, 1.2)  # noqa: S311  spreads load, keeps nothing secret
            if await self._pause(wait):
                self.idle.set()
                return

    async def _pause(self, seconds: float) -> bool:
        """Leave the backend in peace; True: the collector ends, and what waits is safe where it is."""
        if not self._spool.is_durable:
            await asyncio.sleep(seconds)
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)
        return self.ending.is_set()

    async def _send(self, item: Item) -> float | None:
        """Send one request; returns the seconds to wait because the backend is busy, None: it is dealt with."""
        name = self.backend.name
        try:
            await self.backend.send(item.signal, item.data)
        except BusyError as error:
            self.complain("requests wait, for it does not take them", error)
            tries, taken = self._failures.get(item.id, (0, self._taken))
            self._failures[item.id] = tries + 1, taken
            if tries + 1 < GIVE_UP or self._taken == taken:
                self._metrics.forward_attempts_failed.labels(name).inc()
                return error.after or 0.0
            self._metrics.forward_dropped.labels(name, "retries_exhausted").inc()
        except RefusedError as error:
            self.complain("a request is dropped, for it is refused", error)
            self._metrics.forward_dropped.labels(name, "rejected").inc()
        except Exception as error:  # noqa: BLE001  an odd answer must not end the way to this backend
            self._metrics.errors.labels("forward").inc()
            self.complain("an odd answer", f"{type(error).__name__}: {error}")
            return MAX_BACKOFF
        else:
            self._taken += 1
            self._metrics.forward_sent.labels(item.signal, name).inc()
        self._sent.add(item.id)
        return None

    async def _strike_off(self) -> None:
        if self._sent:
            gone = frozenset(self._sent)
            await self._spool.done(self.backend.name, gone)
            self._sent -= gone
            for number in gone:
                self._failures.pop(number, None)
