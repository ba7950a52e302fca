"""The store as one SQLite file in the data folder.

Committed rows survive the end of the collector and a power cut: SQLite's write-ahead log is synced at each commit. If
the file is damaged or cannot be written (disk full), history is lost, but no open incident. The collector starts.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector import database_files as files
from otel_fr_collector.database_files import DamagedError, open_file
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage import sqlite_migrations
from otel_fr_collector.storage.backend import Saved
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.sqlite_prune import prune
from otel_fr_collector.storage.stored_rows import StoredRows, up_to

_log = logging.getLogger(__name__)

FILE_NAME = "incidents.db"
BUSY = 0.2
"""Seconds for which a write waits for another process (sqlite3 in a shell) before it is postponed."""
RETRY = 5.0
"""Seconds before a failed write is tried again."""


class SqliteBackend(StoredRows):
    """The file. Each query has a connection of its own, so that it can read while the file is written.

    Args:
        folder: made if it is missing. Only one collector at a time may use it.

    Raises:
        NewerVersionError: a newer otel-fr has written the file.
        OSError: the folder cannot be made.
    """

    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)
    busy_seconds = BUSY

    def __init__(
        self,
        folder: Path,
        metrics: Metrics,
        retention: Retention | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.path = folder / FILE_NAME
        super().__init__(metrics, str(self.path), retention, wall)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db: sqlite3.Connection | None = None
        self._file: files.OpenedFile | None = None
        self._begin()

    def load(self, limit: int) -> Saved:
        saved = Saved()
        if self._db is None:
            return saved
        query = "SELECT memory, data FROM incidents ORDER BY state = 'firing' DESC, detected DESC LIMIT ?"
        try:
            rows = self._db.execute(query, (limit,)).fetchall()
            runs = self._db.execute("SELECT memory FROM runs").fetchall()
            notes = self._db.execute("SELECT * FROM notes WHERE typeof(value) = 'text'").fetchall()
        except sqlite3.Error as error:
            self.broken(error)
            self._is_late = bool(self.problem)
            return saved
        return self._saved(rows, runs, notes)

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

    def broken(self, error: Exception) -> None:
        """Open the file again, to find out whether it is damaged."""
        self._follow()
        self._disconnect()
        try:
            self._db = self._connect()
        except (sqlite3.Error, OSError) as again:
            error = again
        if not self._is_new:
            self._fail(error)

    def step(self, now: float) -> None:
        if not self._is_closed:
            self._follow()
        super().step(now)

    def prune(self) -> None:
        if self._db is not None:
            prune(self._db, self._retention, self._wall())

    @property
    def _retry_seconds(self) -> float:
        return RETRY

    def _connect(self) -> sqlite3.Connection:
        """Open the file. A damaged file is moved aside, and a new one begun."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        options = {"timeout": BUSY, "check_same_thread": False}
        newest = len(sqlite_migrations.MIGRATIONS)
        db = open_file(self.path, newest, self._prepare, self._note_damage, wall=self._wall, **options)
        self._file = files.OpenedFile(self.path)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only before the first table is made
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")  # published incidents survive a power cut
        problem = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if problem != "ok":
            raise DamagedError(" ".join(problem.split()))
        db.execute("PRAGMA shrink_memory")  # pages that the check has read would hide damage that comes later
        sqlite_migrations.migrate(db)

    def _write(self) -> None:
        db, pending = self._db, self._pending
        assert db is not None
        with db:
            db.executemany(
                "INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", pending.incidents.values()
            )
            for run, memory in pending.runs.items():
                key = (run.job, run.attempt, run.run)
                if memory is None:
                    db.execute("DELETE FROM runs WHERE job = ? AND attempt = ? AND run = ?", key)
                else:
                    db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", (*key, memory))
            notes = [(outlet, number, value) for (outlet, number), value in pending.notes.items()]
            db.executemany("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", notes)
            db.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)", pending.jobs)

    def _note_failed_write(self, error: Exception) -> None:
        self.broken(error)

    def _note_damage(self) -> None:
        self._is_new = True
        self._metrics.errors.labels("store").inc()

    def _follow(self) -> None:
        """Close a file that is no longer at its path. `_flush` then begins another one."""
        if self._db is None or self._file is None or (found := self._file.find()) is files.Found.SAME:
            return
        _log.error("%s was removed or replaced while the collector was running: starting a new one", self.path)
        self._note_damage()
        self._disconnect()
        self._retry_at = 0.0
        if found is files.Found.OTHER:
            with contextlib.suppress(OSError):
                self._file.remove_log()
