"""What is read from the incidents' file, each time by a connection of its own: from any thread, while it is written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector import database_files as files
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.backend import MAX_PAGE
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.stored_rows import StoredRows, up_to

BUSY = 0.2
"""Seconds for which a write waits for another process (sqlite3 in a shell) before it is postponed."""


class SqliteReading(StoredRows):
    """Queries of the file at ``path``; each raises sqlite3.Error if it cannot be read."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)

    def __init__(self, path: Path, metrics: Metrics, retention: Retention | None, wall: Callable[[], float]) -> None:
        super().__init__(metrics, str(path), retention, wall)
        self.path = path

    def find(
        self,
        *,
        job: str | None,
        state: str | None,
        before: float | None = None,
        prefix: str = "",
        limit: int = MAX_PAGE,
        max_size: int | None = None,
        folded: bool = False,
    ) -> list[CollectorIncidentData]:
        query = (
            "SELECT data, state, memory FROM incidents AS one WHERE (?1 IS NULL OR job = ?1)"
            " AND (?2 IS NULL OR state = ?2) AND (?3 IS NULL OR detected < ?3) AND substr(job, 1, length(?5)) = ?5"
            " AND (NOT ?6 OR NOT EXISTS (SELECT 1 FROM incidents AS cause WHERE cause.id = one.cause"
            " AND cause.job = one.job AND cause.attempt = one.attempt AND cause.run = one.run"
            " AND (?2 IS NULL OR cause.state = ?2))) ORDER BY detected DESC LIMIT ?4"
        )
        with contextlib.closing(self._reader()) as db:
            given = (job, state, before, min(limit, MAX_PAGE), prefix, folded)
            rows = up_to(db.execute(query, given), max_size)
        return self._published(rows)

    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        query = "SELECT count(*) FROM incidents WHERE cause = ? AND job = ? AND attempt = ? AND run = ?"
        with contextlib.closing(self._reader()) as db:
            keys = [(one["id"], one["job"], one["attempt"], one["run_id"]) for one in causes]
            return [int(db.execute(query, key).fetchone()[0]) for key in keys]

    def get(self, number: str, prefix: str = "") -> CollectorIncidentData | None:
        query = (
            "SELECT data, state, memory FROM incidents WHERE id = ?1 AND substr(job, 1, length(?2)) = ?2"
            " ORDER BY detected DESC"
        )
        with contextlib.closing(self._reader()) as db:
            row = db.execute(query, (number, prefix)).fetchone()
        return next(iter(self._published([row] if row else [])), None)

    def finished(self, *, before: float | None, prefix: str = "", limit: int = MAX_PAGE) -> list[FinishedJob]:
        query = (
            "SELECT id, job, ended, summary, x'' FROM jobs WHERE (?1 IS NULL OR ended < ?1)"
            " AND substr(job, 1, length(?2)) = ?2 ORDER BY ended DESC LIMIT ?3"
        )
        with contextlib.closing(self._reader()) as db:
            rows = db.execute(query, (before, prefix, min(limit, MAX_PAGE))).fetchall()
        return self._finished(rows)

    def finished_job(self, key: str) -> FinishedJob | None:
        with contextlib.closing(self._reader()) as db:
            row = db.execute("SELECT id, job, ended, summary, detail FROM jobs WHERE id = ?", (key,)).fetchone()
        return next(iter(self._finished([row] if row else [])), None)

    def _reader(self) -> sqlite3.Connection:
        db = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY)
        try:
            files.read_schema(db)
        except sqlite3.Error:
            db.close()
            raise
        return db
