"""Requests that say how ranks ended: on disk before they are acknowledged, until the verdict on their run is stored.

A monitor tells once how its rank ended, and then ends itself. A collector that is killed after its answer and before
the verdict would lose the fault.
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

FILE_NAME = "ends.sqlite3"
MAX_BYTES = 16 << 20
"""Of the requests that wait, in memory and in the file. What comes beyond it is acknowledged without being kept."""


class ReportedEnds:
    """The requests that wait for a verdict, by run."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: dict[RunId, dict[int, Request]] = {}
        self._size = self._latest = 0
        self._recovering: asyncio.Future[list[tuple[str, Request]]] | None = None

    def runs(self) -> list[RunId]:
        """The runs that wait for a verdict."""
        return list(self._waiting)

    def load(self) -> list[tuple[RunId, bytes]]:
        """What waits since before a restart, the oldest first: the run, and the request.

        Raises:
            NewerVersionError: a newer otel-fr has written the file.
        """
        found = self._journal.load()
        self._add((_run_of(name), request) for name, request in found)
        return [(_run_of(name), request.data) for name, request in found]

    async def keep(self, runs: Collection[RunId], data: bytes) -> None:
        """Keep a request that says how ranks of these runs ended. On return it is on disk, if that can be now."""
        if self._size + len(data) > MAX_BYTES:
            return
        self._latest = max(self._latest + 1, time.time_ns())
        request = Request(self._latest, LOGS, data)
        self._add((run, request) for run in runs)
        written = self._journal.add(request, map(_name_of, runs))
        if written is not None:
            await written

    def let_go(self, runs: Iterable[RunId]) -> None:
        """The verdicts on these are stored, or there is none."""
        for run in runs:
            gone = self._waiting.pop(run, {})
            self._size -= sum(len(one.data) for one in gone.values())
            self._journal.remove(_name_of(run), gone)

    def step(self) -> None:
        """Try a file that could not be used again, and write into it all that waits; needs a running event loop."""
        if not self._journal.is_up and (self._recovering is None or self._recovering.done()):
            held = [(_name_of(run), one) for run, own in self._waiting.items() for one in own.values()]
            self._recovering = asyncio.ensure_future(self._journal.reopen(held))

    async def close(self, seconds: float) -> None:
        """Finish writing; takes at most this many seconds."""
        await self._journal.close(seconds)

    def _add(self, found: Iterable[tuple[RunId, Request]]) -> None:
        for run, request in found:
            self._waiting.setdefault(run, {})[request.id] = request
            self._latest = max(self._latest, request.id)
            self._size += len(request.data)


def _name_of(run: RunId) -> str:
    return json.dumps([run.job, run.attempt, run.run])


def _run_of(name: str) -> RunId:
    """A damaged name is a run that nobody knows."""
    with contextlib.suppress(ValueError):
        match json.loads(name):
            case [str() as job, int() as attempt, str() as run]:
                return RunId(job, attempt, run)
    return RunId(name, 0, name)
