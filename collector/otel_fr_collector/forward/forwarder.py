"""Forwards requests to OTLP backends, each with its own bounded queue, without delaying the correlation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Sequence

from otel_fr_collector.forward.backends import Backend
from otel_fr_collector.forward.sampling import Selection
from otel_fr_collector.forward.sender import Sender
from otel_fr_collector.forward.spool import Put, Spool, SpoolError
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import TRACES
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

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
        self._senders = [Sender(backend, spool, metrics) for backend in backends]
        self._tasks: list[asyncio.Task[None]] = []
        self._log = Throttle()
        metrics.watch_forwarding(spool.usage, spool.max_bytes, lambda: spool.is_up)

    @property
    def is_up(self) -> bool:
        """The queue could be used the last time."""
        return self._spool.is_up

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
        """Send queued requests, for at most so many seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._drain(), seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self, seconds: float) -> None:
        """Close the queue within ``seconds`` seconds. What was not sent stays in the file, or is lost."""
        for sender in self._senders:
            await sender.backend.close()
        await self._spool.stop(seconds)
        await asyncio.sleep(0)  # for what follows from the last requests that were queued
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
            sender.end()
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
