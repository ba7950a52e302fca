"""A file of requests that wait, for a backend or a verdict. They survive the end of the collector."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from otel_fr_collector.database_files import SUFFIXES, NewerVersionError, check_tables, open_file, table_columns
from otel_fr_collector.metrics import Metrics

_log = logging.getLogger(__name__)

BUSY = 5.0
"""Seconds for which a write waits for another process (sqlite3 in a shell) before it fails."""
VERSION = 2
_COLUMNS = {"request": ["id", "signal", "data"], "pending": ["request", "backend"]}
_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE IF NOT EXISTS request (id INTEGER PRIMARY KEY, signal TEXT, data BLOB);
CREATE TABLE IF NOT EXISTS pending (request INTEGER, backend TEXT, PRIMARY KEY (request, backend)) WITHOUT ROWID;
"""
_ADD = "INSERT OR IGNORE INTO request VALUES (?, ?, ?)"
_ADD_PENDING = "INSERT OR IGNORE INTO pending VALUES (?, ?)"
_REMOVE_PENDING = "DELETE FROM pending WHERE request = ? AND backend = ?"
_REMOVE = "DELETE FROM request WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM pending WHERE request = ?1)"
_REMOVE_DAMAGED = """
DELETE FROM request WHERE typeof(data) <> 'blob' OR coalesce(signal, '') NOT IN ('traces', 'metrics', 'logs');
DELETE FROM pending WHERE typeof(backend) <> 'text' OR request NOT IN (SELECT id FROM request);
DELETE FROM request WHERE id NOT IN (SELECT request FROM pending);
"""


class Request(NamedTuple):
    """One waiting request. ``id``: the Unix time in ns at which it was queued, increased if necessary to be unique."""

    id: int
    signal: str
    data: bytes


class Journal:
    """The file. One thread writes it. Each transaction writes everything that was queued before.

    After an error, nothing is written until `reopen`. The caller keeps the waiting requests in memory anyway. A damaged
    file is moved aside when it is opened.

    A request waits under one or more names: a name is a backend's, or a run's.

    Args:
        part: the label under which errors are counted.
        what: what the log calls the requests.

    Attributes:
        is_up: whether all waiting requests are in the file, or are being written. Other threads may read it.
    """

    def __init__(
        self, path: Path, metrics: Metrics, part: str = "forward", what: str = "requests for the backends"
    ) -> None:
        self._path = path
        self._errors = metrics.errors.labels(part)
        self._what = what
        self._db: sqlite3.Connection | None = None
        self._statements: deque[tuple[str, tuple[Any, ...]]] = deque()
        self._is_taking = True
        self._is_loaded = False
        self._has_failed = False
        self._thread = ThreadPoolExecutor(1, "otel-fr forward file")

    @property
    def is_up(self) -> bool:
        return self._db is not None

    def load(self) -> list[tuple[str, Request]]:
        """Open the file and return the waiting requests with their names, the oldest first.

        The result is empty if the file cannot be used now.

        Raises:
            NewerVersionError: a newer otel-fr has written the file.
        """
        return self._open([])

    def add(self, request: Request, names: Iterable[str]) -> asyncio.Future[None] | None:
        """Write a request that waits under these names. The future is done once it is on disk or the file has failed.

        None: the file cannot be used now.
        """
        return self._write([(_ADD, request), *((_ADD_PENDING, (request.id, name)) for name in names)])

    def remove(self, name: str, ids: Iterable[int]) -> asyncio.Future[None] | None:
        """Delete requests that no longer wait under a name. Returns a future like `add`."""
        numbers = list(ids)
        gone = [(_REMOVE_PENDING, (number, name)) for number in numbers]
        return self._write([*gone, *((_REMOVE, (number,)) for number in numbers)])

    async def reopen(self, held: Collection[tuple[str, Request]]) -> list[tuple[str, Request]]:
        """Try again after an error, and write all waiting requests.

        Args:
            held: the waiting requests with their names.

        Returns:
            The requests in the file if it is read for the first time.
        """
        self._statements.clear()
        self._is_taking = True
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._open, held)

    async def close(self, seconds: float) -> None:
        """Write what was queued and close the file, within this many seconds."""
        closed = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._is_taking = False
        await asyncio.wait({closed}, timeout=seconds)

    def _write(self, statements: Iterable[tuple[str, tuple[Any, ...]]]) -> asyncio.Future[None] | None:
        if not self._is_taking:
            return None
        self._statements.extend(statements)
        return asyncio.get_running_loop().run_in_executor(self._thread, self._commit)

    # ---- in the thread, except `load`, which runs before the thread has work

    def _commit(self) -> None:
        count = len(self._statements)
        if self._db is None or not count:
            return  # `reopen` will open the file; or an earlier commit has written these statements, too
        try:
            with self._db as db:
                for _ in range(count):
                    db.execute(*self._statements.popleft())
        except sqlite3.Error as error:
            self._fail(error)

    def _open(self, held: Collection[tuple[str, Request]]) -> list[tuple[str, Request]]:
        found: list[tuple[str, Request]] = []

        def prepare(db: sqlite3.Connection) -> None:
            _prepare(db)
            found[:] = [] if self._is_loaded else _read(db)

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._is_loaded and not held:
                # A full disk may have no room even to delete what has been sent.
                for suffix in SUFFIXES:
                    Path(os.path.realpath(self._path) + suffix).unlink(missing_ok=True)
            options: dict[str, Any] = {"timeout": BUSY, "check_same_thread": False}
            db = open_file(self._path, VERSION, prepare, self._note_damage, **options)
            try:
                with db:
                    if self._is_loaded:
                        db.execute("DELETE FROM pending")
                        db.execute("DELETE FROM request")
                    db.executemany(_ADD, (request for _, request in held))
                    db.executemany(_ADD_PENDING, ((request.id, name) for name, request in held))
            except sqlite3.Error:
                db.close()
                raise
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, NewerVersionError) and not self._has_failed:
                raise
            self._fail(error)
            return []
        self._db = db
        self._is_loaded = True
        if self._has_failed:
            self._has_failed = False
            _log.warning("can write %s again", self._path)
        return found

    def _fail(self, error: Exception) -> None:
        self._is_taking = False
        self._close()
        self._statements.clear()
        if not self._has_failed:
            self._has_failed = True
            self._errors.inc()
            _log.error(
                "cannot use %s (%s): keeping %s in memory only",
                *(self._path, error, self._what),
            )

    def _note_damage(self) -> None:
        self._errors.inc()

    def _close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    # FULL: the log is synced at each commit, so that what is acknowledged also survives a power cut.
    db.execute("PRAGMA synchronous = FULL")
    # A table may be missing: the collector was killed while it made the file.
    check_tables(db, {table: columns for table, columns in _COLUMNS.items() if table_columns(db, table)})
    db.executescript(_SCHEMA)


def _read(db: sqlite3.Connection) -> list[tuple[str, Request]]:
    """Read the waiting requests with their names. Damaged rows are deleted, so that they do not block the others."""
    db.executescript(_REMOVE_DAMAGED)
    requests = {row[0]: Request(*row) for row in db.execute("SELECT id, signal, data FROM request")}
    pending = db.execute("SELECT backend, request FROM pending ORDER BY request").fetchall()
    return [(name, requests[number]) for name, number in pending if number in requests]
