"""What is read from the incidents' file, each time by a connection of its own: from any thread, while it is written."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector import database_files as files
from otel_fr_collector.metrics import Metrics
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

    def _rows(self, query: str, given: dict[str, Any], max_size: int | None = None) -> list[Any]:
        with contextlib.closing(self._reader()) as db:
            return up_to(db.execute(query.replace("otel_fr.", ""), given), max_size)

    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        query = "SELECT count(*) FROM incidents WHERE cause = ? AND job = ? AND attempt = ? AND run = ?"
        with contextlib.closing(self._reader()) as db:
            keys = [(one["id"], one["job"], one["attempt"], one["run_id"]) for one in causes]
            return [int(db.execute(query, key).fetchone()[0]) for key in keys]

    def _reader(self) -> sqlite3.Connection:
        db = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY)
        try:
            files.read_schema(db)
        except sqlite3.Error:
            db.close()
            raise
        return db
