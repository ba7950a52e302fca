"""What is read from the incidents' file, each time by a connection of its own: from any thread, while it is written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector import database_files as files
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.backend import MAX_PAGE
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.storage.stored_rows import StoredRows, finished_row, published_row

BUSY = 0.2
"""Seconds for which a write waits for another process (sqlite3 in a shell) before it is postponed."""


class SqliteReading(StoredRows):
    """Queries of the file at ``path``; each raises sqlite3.Error if it cannot be read."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: Path, metrics: Metrics) -> None:
        super().__init__(metrics, str(path))
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
        """Incidents as last published, the newest ``limit`` of those that fit, oldest first.

        Args:
            before: only those detected before this Unix time.
            prefix: only those of jobs whose name begins with it.
            folded: no consequence whose cause fits the job and state, too.
            max_size: no further ones are read once their JSON has so many characters; None: all.
        """
        query = (
            "SELECT data, state, memory FROM incidents AS one WHERE (?1 IS NULL OR job = ?1)"
            " AND (?2 IS NULL OR state = ?2) AND (?3 IS NULL OR detected < ?3) AND substr(job, 1, length(?5)) = ?5"
            " AND (NOT ?6 OR NOT EXISTS (SELECT 1 FROM incidents AS cause WHERE cause.id = one.cause"
            " AND cause.job = one.job AND cause.attempt = one.attempt AND cause.run = one.run"
            " AND (?2 IS NULL OR cause.state = ?2))) ORDER BY detected DESC LIMIT ?4"
        )
        with contextlib.closing(self._reader()) as db:
            rows, size = [], 0
            for row in db.execute(query, (job, state, before, min(limit, MAX_PAGE), prefix, folded)):
                rows.append(row)
                size += len(row[0])
                if max_size is not None and size > max_size:
                    break
        found = []
        for row in reversed(rows):
            with self._skip_unreadable("incident"):
                found.append(published_row(*row))
        return found

    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        """How many incidents follow from each of these."""
        query = "SELECT count(*) FROM incidents WHERE cause = ? AND job = ? AND attempt = ? AND run = ?"
        with contextlib.closing(self._reader()) as db:
            keys = [(one["id"], one["job"], one["attempt"], one["run_id"]) for one in causes]
            return [int(db.execute(query, key).fetchone()[0]) for key in keys]

    def get(self, number: str, prefix: str = "") -> CollectorIncidentData | None:
        """The incident with that id, as last published, of a job whose name begins with ``prefix``."""
        query = (
            "SELECT data, state, memory FROM incidents WHERE id = ?1 AND substr(job, 1, length(?2)) = ?2"
            " ORDER BY detected DESC"
        )
        with contextlib.closing(self._reader()) as db:
            row = db.execute(query, (number, prefix)).fetchone()
        if row:
            with self._skip_unreadable("incident"):
                return published_row(*row)
        return None

    def finished(self, *, before: float | None, prefix: str = "", limit: int = MAX_PAGE) -> list[FinishedJob]:
        """Jobs that are over, without their ``detail``: the newest ``limit`` of those that fit, newest first.

        Args:
            before: only those that ended before this Unix time.
            prefix: only those whose name begins with it.
        """
        query = (
            "SELECT id, job, ended, summary, x'' FROM jobs WHERE (?1 IS NULL OR ended < ?1)"
            " AND substr(job, 1, length(?2)) = ?2 ORDER BY ended DESC LIMIT ?3"
        )
        with contextlib.closing(self._reader()) as db:
            rows = db.execute(query, (before, prefix, min(limit, MAX_PAGE))).fetchall()
        found = []
        for row in rows:
            with self._skip_unreadable("job"):
                found.append(finished_row(*row))
        return found

    def finished_job(self, key: str) -> FinishedJob | None:
        """The job of that name in URLs."""
        with contextlib.closing(self._reader()) as db:
            row = db.execute("SELECT id, job, ended, summary, detail FROM jobs WHERE id = ?", (key,)).fetchone()
        if row:
            with self._skip_unreadable("job"):
                return finished_row(*row)
        return None

    def _reader(self) -> sqlite3.Connection:
        db = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY)
        try:
            files.read_schema(db)
        except sqlite3.Error:
            db.close()
            raise
        return db
