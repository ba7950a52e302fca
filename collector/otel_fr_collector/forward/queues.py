"""The backends' queues: in memory, bounded in bytes and, if there is a file, kept there until the requests are sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from otel_fr_collector.storage.journal import Journal, Request


@dataclass(frozen=True)
class Put:
    """The outcome of queueing one request.

    Attributes:
        kept: the backends for which it is queued.
        full: the backends whose queue is full.
        written: done once the request is in the file, or waits in memory because the file cannot be written. None:
            there is nothing to wait for.
    """

    kept: list[str]
    full: list[str]
    written: asyncio.Future[None] | None


class Queues:
    """The requests that wait for each backend.

    Args:
        max_bytes: capacity of one backend's queue.
        journal: the file. None: waiting requests are lost when the process ends.
        clock: returns Unix time in nanoseconds.

    Attributes:
        waiting: the requests of each backend by id, the oldest first. Includes requests in the file for backends that
            are no longer configured.
        sizes: the bytes of each configured backend's requests. Other threads may read it.

    Raises:
        NewerVersionError: a newer otel-fr has written the file.
    """

    def __init__(
        self,
        backends: Collection[str],
        max_bytes: int,
        journal: Journal | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.max_bytes = max_bytes
        self.waiting: dict[str, dict[int, Request]] = {name: {} for name in backends}
        self.sizes = dict.fromkeys(backends, 0)
        self._journal = journal
        self._clock = clock
        self._latest = 0
        if journal is not None:
            self._add(journal.load())

    @property
    def is_durable(self) -> bool:
        """Whether waiting requests survive the end of the collector."""
        return self._journal is not None and self._journal.is_up

    @property
    def is_up(self) -> bool:
        """False while the file under the queues cannot be used."""
        return self._journal is None or self._journal.is_up

    def put(self, signal: str, data: bytes) -> Put:
        """Queue one request for all backends whose queue has room. Needs a running event loop."""
        self._latest = max(self._latest + 1, self._clock())
        request = Request(self._latest, signal, data)
        kept = [name for name, size in self.sizes.items() if size + len(data) <= self.max_bytes]
        self._add((name, request) for name in kept)
        written = self._journal.add(request, kept) if self._journal is not None and kept else None
        return Put(kept, [name for name in self.sizes if name not in kept], written)

    async def remove(self, backend: str, ids: Collection[int]) -> None:
        """Remove requests that a backend has accepted or will never accept."""
        gone = [request for one in ids if (request := self.waiting[backend].pop(one, None)) is not None]
        if backend in self.sizes:
            self.sizes[backend] -= sum(len(request.data) for request in gone)
        if self._journal is not None:
            written = self._journal.remove(backend, ids)
            if written is not None:
                await written

    async def drop_old(self, seconds: float) -> dict[str, int]:
        """Drop requests that have waited longer than this. Return their number by backend."""
        end = self._clock() - int(seconds * 1e9)
        found = {name: [one for one in requests if one < end] for name, requests in self.waiting.items()}
        for name, ids in found.items():
            if ids:
                await self.remove(name, ids)
        return {name: len(ids) for name, ids in found.items() if ids}

    async def recover(self) -> None:
        """Retry an unusable file, and write all waiting requests into it."""
        if self._journal is not None and not self._journal.is_up:
            held = [(name, request) for name, requests in self.waiting.items() for request in requests.values()]
            self._add(await self._journal.reopen(held))

    async def close(self, seconds: float) -> None:
        """Finish writing, within this many seconds."""
        if self._journal is not None:
            await self._journal.close(seconds)

    def _add(self, found: Iterable[tuple[str, Request]]) -> None:
        for name, request in found:
            self.waiting.setdefault(name, {})[request.id] = request
            self._latest = max(self._latest, request.id)
            if name in self.sizes:
                self.sizes[name] += len(request.data)
