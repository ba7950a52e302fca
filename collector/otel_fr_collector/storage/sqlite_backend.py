"""The store as one SQLite file in the data folder.

What is committed survives the end of the collector, SIGKILL included: SQLite's write-ahead log is handed to the kernel
at each commit. A file that cannot be written (disk full) or is damaged costs history, never an incident that is open,
and never the start of the collector.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from otel_fr_collector import database_files as files
from otel_fr_collector.database_files import DamagedError, open_file
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.backend import DataError, Saved
from otel_fr_collector.storage.batch import Batch
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.sqlite_migrations import check_origin, migrate
from otel_fr_collector.storage.sqlite_prune import prune
from otel_fr_collector.storage.sqlite_reading import BUSY, SqliteReading
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

FILE_NAME = "incidents.db"
RETRY = 5.0
"""Seconds before what could not be written is tried again."""
PRUNE_EVERY = 600.0
CLOSE_RETRY = 0.1
"""Seconds between two attempts to write what is pending when the collector ends."""


class SqliteBackend(SqliteReading):
    """The file. Used from one thread at a time; what `SqliteReading` has may be called from any.

    Args:
        folder: made if it is missing; one collector at a time uses it.

    Raises:
        DataError: a newer otel-fr has written the file.
        OSError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        metrics: Metrics,
        retention: Retention | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(folder / FILE_NAME, metrics)
        self._retention = retention or Retention()
        self._wall = wall
        self._pending = Batch()
        self._retry_at = 0.0
        self._prune_at = 0.0
        self._log = Throttle()
        self.problem = ""
        """Why the file cannot be used now; empty: it can."""
        self._is_new = False
        self._is_late = False
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._db: sqlite3.Connection | None = None
        self._file: files.OpenedFile | None = None
        self._is_closed = False
        metrics.store_up.set(0)
        metrics.watch_store()
        try:
            self._db = self._open()
        except DataError:
            raise
        except (sqlite3.Error, OSError) as error:
            self._is_late = True
            self._fail(error)
        if self._db is not None:
            metrics.store_up.set(1)

    @property
    def is_up(self) -> bool:
        """Everything saved so far is in the file."""
        return self._db is not None and not self._pending and not self.problem

    def load(self, limit: int) -> Saved:
        """The open incidents, the newest resolved ones (``limit`` together at most), and the runs of the open ones."""
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

    def put(self, batch: Batch) -> None:
        """Write these in one transaction. What cannot be written now is written later, within the bounds of `Batch`."""
        self._pending.add(batch)
        self._flush()

    def broken(self, error: Exception) -> None:
        """A write or a read has failed: open the file again, which finds out whether it is damaged."""
        self._follow()
        self._close_file()
        try:
            self._db = self._open()
        except (sqlite3.Error, OSError) as again:
            error = again
        if not self._is_new:
            self._fail(error)

    def take_new(self) -> bool:
        """Return True once if a new file was begun; what is held in memory is then to be saved again."""
        is_new, self._is_new = self._is_new, False
        return is_new

    def take_late(self) -> bool:
        """Return True once if the file has become readable after the start; what it holds is then to be loaded."""
        is_late, self._is_late = self._is_late and self._db is not None, self._is_late and self._db is None
        return is_late

    def step(self, now: float) -> None:
        """Retry what could not be written; delete what is beyond the retention. ``now``: monotonic."""
        if self._is_closed:
            return
        self._follow()
        if not self.is_up and now >= self._retry_at:
            self._retry_at = now + RETRY
            self._flush(again=True)
        if self.is_up and now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY
            try:
                self.prune()
            except sqlite3.Error as error:
                self.broken(error)

    def prune(self) -> int:
        """Delete resolved incidents beyond the retention; returns how many.

        Raises:
            sqlite3.Error: the file cannot be written.
        """
        return 0 if self._db is None else prune(self._db, self._retention, self._wall())

    def close(self, until: float = 0.0) -> None:
        """Write what is pending; the store takes nothing after that.

        Args:
            until: monotonic time until when a write that fails is tried again.
        """
        self._flush(again=True)
        while not self.is_up and time.monotonic() + BUSY + CLOSE_RETRY < until:
            time.sleep(CLOSE_RETRY)
            self._flush(again=True)
        if self._pending.incidents:
            _log.error("%s: could not write %d incidents before shutdown", self.path, len(self._pending.incidents))
        self._is_closed = True
        self._close_file()

    def _open(self) -> sqlite3.Connection:
        """The connection; a damaged file is moved aside and a new one begun.

        Raises:
            sqlite3.Error, OSError: there is none now.
            DataError: a newer otel-fr has written the file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        options = {"timeout": BUSY, "check_same_thread": False}
        db = open_file(self.path, self._prepare, self._note_damage, wall=self._wall, **options)
        self._file = files.OpenedFile(self.path)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        check_origin(db, self.path)
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts only before the first table is made
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last commits, never the file
        problem = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
        if problem != "ok":
            raise DamagedError(" ".join(problem.split()))
        db.execute("PRAGMA shrink_memory")  # pages that the check has read would hide damage that comes later
        migrate(db)

    def _flush(self, *, again: bool = False) -> None:
        """Write all that is pending. After a failure only ``again`` tries before `RETRY` is over."""
        if self._is_closed or (not again and time.monotonic() < self._retry_at):
            return
        try:
            if self._db is None:
                self._db = self._open()
            self._write(self._db)
        except (sqlite3.Error, OSError) as error:
            self.broken(error)

    def _write(self, db: sqlite3.Connection) -> None:
        pending = self._pending
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
        pending.clear()
        self._retry_at = 0.0
        if self.problem:
            self.problem = ""
            _log.warning("can write %s again", self.path)
        self._metrics.store_up.set(1)

    def _fail(self, error: Exception) -> None:
        now = time.monotonic()
        self._retry_at = now + RETRY
        self._metrics.store_up.set(0)
        self._metrics.errors.labels("store").inc()
        self.problem = str(error)
        if self._log.allows(self.problem, now):
            _log.error("cannot write %s (%s): keeping incidents in memory only", self.path, error)

    def _note_damage(self) -> None:
        self._is_new = True
        self._metrics.errors.labels("store").inc()

    def _follow(self) -> None:
        """Let go of a file that is no longer at its path; `_flush` continues in another one."""
        if self._db is None or self._file is None or (found := self._file.find()) is files.Found.SAME:
            return
        _log.error("%s was removed or replaced while the collector was running: starting a new one", self.path)
        self._note_damage()
        self._close_file()
        self._retry_at = 0.0
        if found is files.Found.OTHER:
            with contextlib.suppress(OSError):
                self._file.remove_log()

    def _close_file(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None
