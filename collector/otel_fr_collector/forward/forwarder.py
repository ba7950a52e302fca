"""Forwards requests to OTLP backends, each with its own bounded queue, without delaying the correlation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import random
from collections.abc import Callable, Sequence

from otel_fr_collector.forward.backends import PARALLEL, Backend, BusyError, RefusedError
from otel_fr_collector.forward.sampling import Selection
from otel_fr_collector.forward.spool import Item, Put, Spool, SpoolError
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import TRACES
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
CLEAN_EVERY = 30.0
LARGE_REQUEST_BYTES = 1 << 20
"""Bytes from which traces are selected from a request outside the event loop."""


class Forwarder:
    """Forwards requests.

    Args:
        signals: those that are forwarded.
        selection: selects traces; None: all are forwarded, bytes unchanged.
        max_age: seconds after which a request that no backend has accepted is dropped.
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
        self._senders = [_Sender(backend, spool, metrics) for backend in backends]
        self._tasks: list[asyncio.Task[None]] = []
        self._log = Throttle()
        metrics.watch_forwarding(spool.usage, spool.max_bytes)

    def start(self) -> None:
        """Begin to send; needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(sender.run()) for sender in self._senders]
        self._tasks.append(loop.create_task(self._clean()))
        with contextlib.suppress(SpoolError):  # logged when it was opened
            for name, count in self._spool.others().items():
                _log.warning("%d requests wait for %s, which is no longer a --forward backend", count, name)

    async def take(self, signal: str, data: bytes) -> None:
        """Queue the part of a request that is forwarded. On return it is as durable as the queue.

        Raises:
            SpoolError: it could not be queued, so its sender must retry.
        """
        if not data or signal not in self._signals:
            return
        if signal == TRACES and self._selection is not None:
            self._selection.hold(data)
            if len(data) < LARGE_REQUEST_BYTES:
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
        """Queue a request of the collector itself, without waiting; if it cannot be queued it is dropped and counted.

        Args:
            queued: called in the event loop once the request is as durable as the queue.
        """
        if signal not in self._signals:
            return
        loop = asyncio.get_running_loop()
        future = self._spool.put_later(signal, data)
        future.add_done_callback(lambda done: loop.call_soon_threadsafe(self._offered, signal, done, queued))

    def keep_trace(self, trace: bytes) -> None:
        """Forward the spans of the trace of an incident, whatever the mode."""
        if self._selection is not None:
            for data in self._selection.mark(trace):
                self.offer(TRACES, data)

    async def stop(self, seconds: float) -> None:
        """Send queued requests within ``seconds`` seconds. The rest stays in the file, or is lost."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._drain(), seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sender in self._senders:
            await sender.backend.close()
        self._spool.close()
        if not self._spool.is_durable:
            for name, (count, _) in self._spool.usage.items():
                self._metrics.forward_dropped.labels(name, "shutdown").inc(count)
                if count:
                    _log.warning("%d requests for %s are lost at shutdown; set --data to keep them", count, name)

    async def _drain(self) -> None:
        # Requests offered last may not be in the queue yet; until they are, an idle sender proves nothing.
        with contextlib.suppress(SpoolError):
            await self._spool.settle()
        for sender in self._senders:
            sender.ending.set()
        for sender in self._senders:
            await sender.idle.wait()

    async def _clean(self) -> None:
        while True:
            try:
                for name, count in (await self._spool.drop_old(self._max_age)).items():
                    self._metrics.forward_dropped.labels(name, "expired").inc(count)
                    _log.warning(
                        "%d requests for %s are dropped: they waited longer than --forward-max-age", count, name
                    )
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
        for sender in self._senders:
            if sender.backend.name in put.kept:
                sender.wake()
            elif sender.backend.name in put.full:
                sender.complain("its queue is full, requests are dropped")

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
        if self._log.allows():
            _log.error("cannot queue requests for the backends: %s", error)


class _Sender:
    """Sends the requests in one backend's queue."""

    def __init__(self, backend: Backend, spool: Spool, metrics: Metrics) -> None:
        self.backend = backend
        self.idle = asyncio.Event()
        self.ending = asyncio.Event()
        self._spool = spool
        self._metrics = metrics
        self._wake = asyncio.Event()
        self._sent: set[int] = set()
        """Accepted or rejected by the backend, but not yet removed from the queue because the disk is full."""
        self._failures: dict[int, tuple[int, int]] = {}
        """By request, its failed attempts, and how many others had been accepted before the first."""
        self._accepted = 0
        self._log = Throttle()

    def wake(self) -> None:
        self.idle.clear()
        self._wake.set()

    def complain(self, what: str, why: object = "") -> None:
        """Log a problem; the same one at most once a minute."""
        if self._log.allows(what):
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
                await self._remove_sent()
            except SpoolError as error:
                self.complain("its queue cannot be read or written", error)
                await asyncio.sleep(1.0)
                continue
            asked = [outcome for outcome in outcomes if outcome is not None]
            if not asked:
                backoff = FIRST_BACKOFF
                continue
            wait = max(backoff, *asked)
            backoff = min(2 * backoff, MAX_BACKOFF)
            wait *= random.uniform(1.0, 1.2)  # noqa: S311  spreads load, keeps nothing secret
            if await self._pause(wait):
                self.idle.set()
                return

    async def _pause(self, seconds: float) -> bool:
        """Wait; True: the collector stops, and the queued requests are safe in the file."""
        if not self._spool.is_durable:
            await asyncio.sleep(seconds)
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.ending.wait(), seconds)
        return self.ending.is_set()

    async def _send(self, item: Item) -> float | None:
        """Send one request; returns the seconds to wait because the backend is busy, None: accepted or rejected."""
        name = self.backend.name
        try:
            await self.backend.send(item.signal, item.data)
        except BusyError as error:
            self.complain("requests wait, it does not accept them", error)
            if not self._is_at_fault(item):
                self._metrics.forward_attempts_failed.labels(name).inc()
                return error.after or 0.0
            self._metrics.forward_dropped.labels(name, "retries_exhausted").inc()
        except RefusedError as error:
            self.complain("it rejected a request, which is dropped", error)
            self._metrics.forward_dropped.labels(name, "rejected").inc()
        except Exception as error:  # noqa: BLE001  an unexpected response must not end the sending to this backend
            self._metrics.errors.labels("forward").inc()
            self.complain("unexpected response", f"{type(error).__name__}: {error}")
            if not self._is_at_fault(item):
                self._metrics.forward_attempts_failed.labels(name).inc()
                return MAX_BACKOFF
            self._metrics.forward_dropped.labels(name, "retries_exhausted").inc()
        else:
            self._accepted += 1
            self._metrics.forward_sent.labels(item.signal, name).inc()
        self._sent.add(item.id)
        return None

    def _is_at_fault(self, item: Item) -> bool:
        """Count a failed attempt; True: it was the last of `MAX_ATTEMPTS`, and others were accepted meanwhile."""
        tries, accepted = self._failures.get(item.id, (0, self._accepted))
        self._failures[item.id] = tries + 1, accepted
        return tries + 1 >= MAX_ATTEMPTS and self._accepted > accepted

    async def _remove_sent(self) -> None:
        if self._sent:
            removed = frozenset(self._sent)
            await self._spool.done(self.backend.name, removed)
            self._sent -= removed
            for number in removed:
                self._failures.pop(number, None)
