"""The queues of the backends: a SQLite database, in a file that survives a restart, or in memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

REPEAT_SECONDS = 600.0
"""A request of the same bytes within this time is a retry of its sender (exporters retry for about a minute)."""
BATCH = 256
"""Operations in one transaction, so that a thousand waiting senders share the cost of one sync."""
HEAD_BYTES = 16 * 1024 * 1024
"""Limit on the requests read for sending at once, so that eight large ones do not fill the memory."""
MAX_LOG_BYTES = 64 * 1024 * 1024
"""The write-ahead log is truncated to this after a large transaction."""
FREE_PAGES = 10_000
"""Empty pages returned to the file system at a time, so that the file shrinks after an outage."""
VERSION = 1
_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE IF NOT EXISTS request (id INTEGER PRIMARY KEY AUTOINCREMENT, signal TEXT, at REAL, data BLOB);
CREATE TABLE IF NOT EXISTS pending (backend TEXT, request INTEGER, size INTEGER, PRIMARY KEY (backend, request))
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pending_request ON pending (request);
CREATE TABLE IF NOT EXISTS seen (hash BLOB PRIMARY KEY, at REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_at ON seen (at);
"""


class SpoolError(OSError):
    """The queue cannot be written: the disk is full or broken."""


class Item(NamedTuple):
    """One queued request."""

    id: int
    signal: str
    data: bytes


@dataclass
class Put:
    """The outcome for one request: the backends it is queued for, those whose queue is full, or that it is a retry."""

    kept: Sequence[str] = ()
    full: Sequence[str] = ()
    repeated: bool = False


@dataclass
class _Job:
    work: Callable[[sqlite3.Connection], Any]
    result: concurrent.futures.Future[Any]


class Spool:
    """One thread owns the database and runs all operations in order, many in one transaction.

    Args:
        path: of the file; None: in memory.
        backends: names of the backends.
        max_bytes: capacity of one backend's queue.

    Raises:
        SpoolError: the file cannot be opened.
    """

    def __init__(
        self, path: Path | None, backends: Sequence[str], max_bytes: int, wall: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._backends = list(backends)
        self.max_bytes = max_bytes
        self._wall = wall
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.usage: dict[str, list[int]] = {name: [0, 0] for name in backends}
        """For each backend, the number and the bytes of the requests that wait. Other threads may read it."""
        self._connection = self._open()
        self._count()
        self._thread = threading.Thread(target=self._run, name="otel-fr-spool", daemon=True)
        self._thread.start()

    @property
    def is_durable(self) -> bool:
        return self._path is not None

    async def put(self, signal: str, data: bytes) -> Put:
        """Queue one request for all backends whose queue is not full; on return it is on disk.

        Raises:
            SpoolError: the request could not be written; nothing is queued.
        """
        return await self._do(lambda db: self._put(db, signal, data))

    def put_later(self, signal: str, data: bytes) -> concurrent.futures.Future[Put]:
        """As `put`, without waiting."""
        return self._submit(lambda db: self._put(db, signal, data))

    async def head(self, backend: str, count: int, skip: Collection[int] = ()) -> list[Item]:
        """The oldest requests that wait for a backend, without those in ``skip``: one, or at most `HEAD_BYTES`."""

        def read(db: sqlite3.Connection) -> list[Item]:
            query = "SELECT request, size FROM pending WHERE backend = ? ORDER BY request LIMIT ?"
            rows = [row for row in db.execute(query, (backend, count + len(skip))) if row[0] not in skip]
            found: list[Item] = []
            room = HEAD_BYTES
            for number, size in rows[:count]:
                room -= size
                if found and room < 0:
                    break
                found.append(
                    Item(*db.execute("SELECT id, signal, data FROM request WHERE id = ?", (number,)).fetchone())
                )
            return found

        return await self._do(read)

    async def done(self, backend: str, ids: Collection[int]) -> None:
        """Remove requests that a backend has accepted, or never will.

        Raises:
            SpoolError: the change could not be written; the requests are still queued.
        """

        def remove(db: sqlite3.Connection) -> None:
            for number in ids:
                found = db.execute("SELECT size FROM pending WHERE backend = ? AND request = ?", (backend, number))
                row = found.fetchone()
                if row is None:
                    continue
                db.execute("DELETE FROM pending WHERE backend = ? AND request = ?", (backend, number))
                if db.execute("SELECT 1 FROM pending WHERE request = ?", (number,)).fetchone() is None:
                    db.execute("DELETE FROM request WHERE id = ?", (number,))
                self._use(backend, -1, -row[0])

        await self._do(remove)

    async def drop_old(self, seconds: float) -> dict[str, int]:
        """Drop requests that have waited longer than this, and the hashes of requests older than `REPEAT_SECONDS`.

        Returns:
            for each backend, also one that is no longer configured, how many requests were dropped.

        Raises:
            SpoolError: the change could not be written.
        """

        def drop(db: sqlite3.Connection) -> dict[str, int]:
            now = self._wall()
            db.execute("DELETE FROM seen WHERE at < ?", (now - REPEAT_SECONDS,))
            old = now - seconds
            query = "SELECT backend, count(*) FROM pending JOIN request ON request.id = request WHERE at < ? GROUP BY 1"
            lost = dict(db.execute(query, (old,)).fetchall())
            if lost:
                db.execute("DELETE FROM pending WHERE request IN (SELECT id FROM request WHERE at < ?)", (old,))
                db.execute("DELETE FROM request WHERE at < ?", (old,))
                self._count_in(db)
            free = db.execute("PRAGMA freelist_count").fetchone()[0]
            for _ in range(min(free, FREE_PAGES)):  # Python's sqlite3 runs one step of it, so one page, each time
                db.execute("PRAGMA incremental_vacuum(1)")
            return lost

        return await self._do(drop)

    async def settle(self) -> None:
        """Wait until every operation submitted so far has ended."""
        await self._do(lambda _: None)

    def others(self) -> dict[str, int]:
        """By backend that is not configured, its requests in the file; to be called before the first `put`."""
        rows = self._submit(
            lambda db: db.execute("SELECT backend, count(*) FROM pending GROUP BY 1").fetchall()
        ).result()
        return {name: count for name, count in rows if name not in self.usage}

    def close(self) -> None:
        """Finish all operations and close the file."""
        self._jobs.put(None)
        self._thread.join()

    def _put(self, db: sqlite3.Connection, signal: str, data: bytes) -> Put:
        now = self._wall()
        digest = hashlib.blake2b(data, digest_size=16, person=signal.encode()).digest()
        fresh = db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, now)).rowcount
        if not fresh:
            return Put(repeated=True)
        kept = [name for name in self._backends if self.usage[name][1] + len(data) <= self.max_bytes]
        if kept:
            number = db.execute("INSERT INTO request VALUES (NULL, ?, ?, ?)", (signal, now, data)).lastrowid
            db.executemany("INSERT INTO pending VALUES (?, ?, ?)", [(name, number, len(data)) for name in kept])
        for name in kept:
            self._use(name, 1, len(data))
        return Put(kept, [name for name in self._backends if name not in kept])

    def _use(self, backend: str, count: int, size: int) -> None:
        if backend in self.usage:
            self.usage[backend][0] += count
            self.usage[backend][1] += size

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Callable[[sqlite3.Connection], _T]) -> concurrent.futures.Future[_T]:
        job = _Job(work, concurrent.futures.Future())
        self._jobs.put(job)
        return job.result

    def _run(self) -> None:
        is_open = True
        while is_open:
            jobs = [self._jobs.get()]
            while len(jobs) < BATCH and not self._jobs.empty():
                jobs.append(self._jobs.get())
            is_open = None not in jobs
            self._transact([job for job in jobs if job is not None and job.result.set_running_or_notify_cancel()])
        self._connection.close()

    def _transact(self, jobs: list[_Job]) -> None:
        db = self._connection
        try:
            db.execute("BEGIN IMMEDIATE")
            results = [job.work(db) for job in jobs]
            db.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  if the thread ended, every sender would wait forever
            self._roll_back()
            if len(jobs) > 1:  # one request too large for the disk must not fail the others
                for job in jobs:
                    self._transact([job])
            elif jobs:
                jobs[0].result.set_exception(SpoolError(f"the queue {self._path or 'in memory'}: {error}"))
            return
        for job, result in zip(jobs, results, strict=True):
            job.result.set_result(result)

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._count()
        except sqlite3.Error:
            _log.exception("the sizes of the queues cannot be read")

    def _count(self) -> None:
        self._count_in(self._connection)

    def _count_in(self, db: sqlite3.Connection) -> None:
        found = {name: [0, 0] for name in self._backends}
        for name, count, size in db.execute("SELECT backend, count(*), sum(size) FROM pending GROUP BY 1"):
            if name in found:
                found[name] = [count, size]
        self.usage.update(found)

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            raise SpoolError(f"the queue {self._path} cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:  # not a database, or a damaged one: its path is needed
            if self._path is None:
                raise
            aside = self._path.with_name(f"{self._path.name}.broken-{int(self._wall())}")
            _log.error(
                "the queue %s is damaged (%s); it is kept as %s, and a new one is created", self._path, error, aside
            )
            self._path.rename(aside)
            for suffix in ("-wal", "-shm"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        name = ":memory:" if self._path is None else str(self._path)
        db = sqlite3.connect(name, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
            # FULL: the log is synced at each commit, so that what is acknowledged also survives a power cut.
            db.execute("PRAGMA synchronous = FULL")
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found > VERSION:
                raise SpoolError(
                    f"the queue {self._path} was written by a newer otel-fr (version {found}, not {VERSION})"
                )
            db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return db
