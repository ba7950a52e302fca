"""A collector's store, for tests of its users, and databases without the writing thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.batch import Batch, FinishedJob, of_incidents, of_notes
from otel_fr_collector.storage.opening import open_ends
from otel_fr_collector.storage.postgres_backend import PostgresBackend
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.sqlite_backend import SqliteBackend
from otel_fr_collector.storage.store import Store


class _Direct:
    """Methods of `Store` that return only after the data is written."""

    _wall: Callable[[], float]

    def put(self, batch: Batch) -> None:
        raise NotImplementedError

    def save(self, incidents: Iterable[Incident], runs: Iterable[Run] = ()) -> None:
        self.put(of_incidents(incidents, runs, time.monotonic(), self._wall()))

    def drop_run(self, run: RunId) -> None:
        self.put(Batch(runs={run: None}))

    def note(self, outlet: str, values: Mapping[str, str]) -> None:
        self.put(of_notes(outlet, values))

    def save_job(self, job: FinishedJob) -> None:
        self.put(Batch(jobs=[job]))


class DirectSqlite(SqliteBackend, _Direct):
    """A file, used without a thread."""


class DirectPostgres(PostgresBackend, _Direct):
    """A database on a server, used without a thread."""


def sqlite_store(
    folder: Path,
    metrics: Metrics | None = None,
    retention: Retention | None = None,
    wall: Callable[[], float] = time.time,
    clock: Callable[[], float] = time.monotonic,
) -> Store:
    """Return a store with its file in the folder."""
    metrics = metrics or Metrics()
    backend = SqliteBackend(folder, metrics, retention, wall)
    return Store(backend, metrics, wall, clock=clock, ends=open_ends(folder, metrics))
