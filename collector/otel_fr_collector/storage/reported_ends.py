"""Requests that report how ranks ended. They are on disk before they are acknowledged, until the verdict is stored.

A monitor reports once how its rank ended, and then exits. Without the file, a collector that is killed after it
acknowledged the request and before the verdict would lose the fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Collection, Iterable

from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.otlp.signals import LOGS
from otel_fr_collector.storage.journal import Journal, Request
from otel_fr_collector.storage.serialization import dump_run_id, load_run_id

FILE_NAME = "ends.sqlite3"
MAX_BYTES = 16 << 20
"""Bytes of the waiting requests, in memory and in the file. Requests beyond it are acknowledged but not kept."""


class ReportedEnds:
    """The requests that wait for a verdict, by run."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: dict[RunId, dict[int, Request]] = {}
        self._size = self._latest = 0
        self._recovering: asyncio.Future[None] | None = None

    def runs(self) -> list[RunId]:
        """The runs that wait for a verdict."""
        return list(self._waiting)

    def load(self) -> list[tuple[RunId, bytes]]:
        """Load the requests that waited before a restart, each with its run, the oldest first.

        Raises:
            NewerVersionError: a newer otel-fr has written the file.
        """
        found = self._journal.load()
        self._add((_run_of(name), request) for name, request in found)
        return [(_run_of(name), request.data) for name, request in found]

    async def keep(self, runs: Collection[RunId], data: bytes) -> None:
        """Keep a request that reports how ranks of these runs ended. On return it is on disk, if that is possible."""
        if self._size + len(data) > MAX_BYTES:
            return
        self._latest = max(self._latest + 1, time.time_ns())
        request = Request(self._latest, LOGS, data)
        self._add((run, request) for run in runs)
        written = self._journal.add(request, map(_name_of, runs))
        if written is not None:
            await written

    def let_go(self, runs: Iterable[RunId]) -> None:
        """Drop the requests of runs whose verdict is stored, or that get none."""
        for run in runs:
            gone = self._waiting.pop(run, {})
            self._size -= sum(len(one.data) for one in gone.values())
            self._journal.remove(_name_of(run), gone)

    def step(self) -> None:
        """Retry an unusable file, and write all waiting requests into it. Needs a running event loop."""
        if not self._journal.is_up and (self._recovering is None or self._recovering.done()):
            held = [(_name_of(run), one) for run, own in self._waiting.items() for one in own.values()]
            self._recovering = asyncio.ensure_future(self._recover(held))

    async def close(self, seconds: float) -> None:
        """Finish writing, within this many seconds."""
        await self._journal.close(seconds)

    async def _recover(self, held: list[tuple[str, Request]]) -> None:
        """Reopen the file. Requests that could not be read at the start come too late for a verdict: `let_go` deletes
        them, so that the next start does not judge their runs, which may have ended days ago."""
        self._add((_run_of(name), request) for name, request in await self._journal.reopen(held))

    def _add(self, found: Iterable[tuple[RunId, Request]]) -> None:
        for run, request in found:
            self._waiting.setdefault(run, {})[request.id] = request
            self._latest = max(self._latest, request.id)
            self._size += len(request.data)


def _name_of(run: RunId) -> str:
    return json.dumps(dump_run_id(run))


def _run_of(name: str) -> RunId:
    """The run of a name. A damaged name becomes a run that nobody knows."""
    with contextlib.suppress(ValueError):
        return load_run_id(json.loads(name))
    return RunId(name, 0, name)
