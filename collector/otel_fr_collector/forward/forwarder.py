"""Forwards requests to OTLP backends. Each backend has its own bounded queue, and none delays the correlation."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from otel_fr_collector.forward.backends import Backend
from otel_fr_collector.forward.queues import Put, Queues
from otel_fr_collector.forward.selection import Selection, parts_of
from otel_fr_collector.forward.sender import Sender
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import TRACES

_log = logging.getLogger(__name__)

CLEAN_EVERY = 10.0
"""Seconds between two clean-ups. A clean-up drops old requests, and retries a failed file."""
MAX_AGE = 86_400.0
"""Seconds after which a request that no backend has accepted is dropped."""
LARGE_BYTES = 1 << 20
"""Traces are selected from requests of at least this size, in bytes, in a thread."""
_T = TypeVar("_T")


class Forwarder:
    """Forwards requests.

    Args:
        signals: the signals that are forwarded.
        selection: selects traces. None: all traces are forwarded, with their bytes unchanged.
    """

    def __init__(
        self,
        queues: Queues,
        backends: Sequence[Backend],
        metrics: Metrics,
        *,
        signals: frozenset[str] = frozenset({TRACES}),
        selection: Selection | None = None,
    ) -> None:
        self._queues = queues
        self._metrics = metrics
        self._signals = signals
        self._selection = selection
        self._senders = [Sender(backend, queues, metrics) for backend in backends]
        self._sending: list[asyncio.Task[None]] = []
        self._cleaning: asyncio.Task[None] | None = None
        self._offering: set[asyncio.Task[None]] = set()  # asyncio keeps no reference to a task
        metrics.watch_forwarding(queues.sizes, queues.max_bytes, lambda: queues.is_up)

    @property
    def is_up(self) -> bool:
        """False while the file under the queues cannot be used."""
        return self._queues.is_up

    def start(self) -> None:
        """Start sending. Needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._sending = [loop.create_task(sender.run()) for sender in self._senders]
        self._cleaning = loop.create_task(self._clean())
        for name, requests in self._queues.waiting.items():
            if name not in self._queues.sizes:
                _log.warning(
                    "%d queued requests are for %s, which is no longer a --forward backend", len(requests), name
                )

    async def take(self, signal: str, data: bytes) -> None:
        """Queue the part of a request that must be forwarded. On return it is as durable as the queue."""
        if not data or signal not in self._signals:
            return
        if signal == TRACES and self._selection is not None:
            data = await _selected(self._selection.take(data), len(data))
            if not data:
                return
        put = self._put(signal, data)
        if put.written is not None:
            await put.written

    def offer(self, signal: str, data: bytes, queued: Callable[[], None] | None = None) -> None:
        """Queue a request of the collector itself, without waiting.

        Args:
            queued: called in the event loop once the request is as durable as the queue.
        """
        if signal not in self._signals:
            return
        written = self._put(signal, data).written
        if queued is not None and written is not None:
            written.add_done_callback(lambda _: queued())
        elif queued is not None:
            queued()

    def keep_trace(self, trace: bytes) -> None:
        """Forward the spans of an incident's trace even if only selected traces are forwarded."""
        if self._selection is not None and (kept := self._selection.mark(trace)):
            task = asyncio.get_running_loop().create_task(self._offer_parts(trace, kept))
            self._offering.add(task)
            task.add_done_callback(self._offering.discard)

    async def _offer_parts(self, trace: bytes, requests: Sequence[bytes]) -> None:
        for data in await _selected(functools.partial(parts_of, trace, requests), sum(map(len, requests))):
            self.offer(TRACES, data)

    async def stop(self, seconds: float) -> None:
        """Send queued requests, for at most this many seconds."""
        await asyncio.gather(*self._offering)
        for sender in self._senders:
            sender.end()
        await asyncio.wait(self._sending, timeout=seconds)
        tasks = [*self._sending, *([] if self._cleaning is None else [self._cleaning])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self, seconds: float) -> None:
        """Close the queues within ``seconds`` seconds. What was not sent stays in the file, or is lost."""
        for sender in self._senders:
            await sender.backend.close()
        is_kept = self._queues.is_durable
        await self._queues.close(seconds)
        await asyncio.sleep(0)  # lets the callbacks of the last written requests run
        for name in self._queues.sizes:
            if (count := len(self._queues.waiting[name])) and not is_kept:
                self._metrics.forward_dropped.labels(name, "shutdown").inc(count)
                _log.warning("lost %d requests for %s at shutdown: they were in memory only", count, name)

    async def _clean(self) -> None:
        while True:
            for name, count in (await self._queues.drop_old(MAX_AGE)).items():
                self._metrics.forward_dropped.labels(name, "expired").inc(count)
                _log.warning("dropped %d requests for %s: they waited longer than a day", count, name)
            await self._queues.recover()
            for sender in self._senders:
                sender.wake()
            await asyncio.sleep(CLEAN_EVERY)

    def _put(self, signal: str, data: bytes) -> Put:
        put = self._queues.put(signal, data)
        for name in put.full:
            self._metrics.forward_dropped.labels(name, "queue_full").inc()
        for sender in self._senders:
            if sender.backend.name in put.kept:
                sender.wake()
            else:
                sender.complain("its queue is full; dropping requests")
        return put


async def _selected(select: Callable[[], _T], size: int) -> _T:
    """The result of a selection. ``size``: bytes of the requests."""
    return select() if size < LARGE_BYTES else await asyncio.to_thread(select)
