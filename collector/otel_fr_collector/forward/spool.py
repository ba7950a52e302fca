"""The queues of the backends: a SQLite database, in a file that survives a restart, or in memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import hashlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from otel_fr_collector.database_files import DamagedError, is_changed, is_damage, is_full
from otel_fr_collector.forward.spool_file import SpoolFile
from otel_fr_collector.otlp.signals import METHODS

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

REPEAT_SECONDS = 600.0
"""A request of the same bytes within this time is a retry of its sender (exporters retry for about a minute)."""
BATCH = 256
"""Operations in one transaction, so that a thousand waiting senders share the cost of one sync."""
HEAD_BYTES = 16 * 1024 * 1024
"""Limit on the requests read for sending at once, so that eight large ones do not fill the memory."""
FREE_PAGES = 10_000
"""Empty pages returned to the file system at a time, so that the file shrinks after an outage."""
FREE_STEP = 64
"""Of them in one transaction; it and the next must find room in the log of a file on a full disk."""
REMOVED_AT_ONCE = 64
"""Requests removed in one transaction, for the same reason."""


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

    A damaged file is moved aside and a new one begun, at the start and later. While there is none that can be used, all
    operations fail, so nothing is acknowledged that is not on disk.

    Args:
        path: of the file; None: in memory.
        backends: names of the backends.
        max_bytes: capacity of one backend's queue.
        damaged: called with the requests by backend that were in a damaged file, as far as that is known.

    Raises:
        NewerVersionError: a newer otel-fr has written the file.
    """

    def __init__(
        self,
        path: Path | None,
        backends: Sequence[str],
        max_bytes: int,
        wall: Callable[[], float] = time.time,
        damaged: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        self._name = str(path or "in memory")
        self.is_durable = path is not None
        """What waits survives the end of the collector."""
        self._backends = list(backends)
        self.max_bytes = max_bytes
        self._wall = wall
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.usage: dict[str, list[int]] = {name: [0, 0] for name in backends}
        """For each backend, the number and the bytes of the requests that wait. Other threads may read it."""
        self._damaged = damaged
        self._highest = 0
        """Highest number of a request that was given out: a new file goes on from there."""
        self._gone: set[tuple[str, int]] = set()
        """The backends and requests that are to be removed, while the disk is too full for that."""
        self._remedies = (self._empty_log, self._begin_anew)
        """For a full disk, each tried before an operation that has failed is tried again."""
        self._is_smaller = False
        """Pages at its end are free, which the file still has."""
        self._is_closed = False
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._file = SpoolFile(path, self._opened, self._lost, wall)
        self.is_up = self._file.connection is not None
        """The last operation could use the file. Other threads may read it."""
        self._thread = threading.Thread(target=self._run, name="otel-fr-spool", daemon=True)
        self._thread.start()

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
            while True:
                rows = [row for row in db.execute(query, (backend, count + len(skip))) if row[0] not in skip]
                found: list[Item] = []
                unreadable: list[object] = []
                room = HEAD_BYTES
                for number, size in rows[:count]:
                    room -= size if isinstance(size, int) else 0
                    if found and room < 0:
                        break
                    item = _item(db, number)
                    if item is None:
                        unreadable.append(number)
                        continue
                    found.append(item)
                    self._highest = max(self._highest, item.id)
                self._drop_unreadable(db, backend, unreadable)
                if found or not unreadable:
                    break
            if not found and not skip:
                self._check_empty(db, backend)
            return found

        return await self._do(read)

    async def get(self, backend: str, number: int) -> Item | None:
        """One request that waits for a backend; None: it does not any more.

        Raises:
            SpoolError: the file cannot be read.
        """

        def read(db: sqlite3.Connection) -> Item | None:
            query = "SELECT 1 FROM pending WHERE backend = ? AND request = ?"
            return _item(db, number) if db.execute(query, (backend, number)).fetchone() else None

        return await self._do(read)

    async def done(self, backend: str, ids: Collection[int]) -> None:
        """Remove requests that a backend has accepted, or never will.

        Raises:
            SpoolError: the change could not be written; the requests are still queued.
        """

        def remove(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
            self._gone.update((backend, number) for number in numbers)
            for number in numbers:
                found = db.execute("SELECT size FROM pending WHERE backend = ? AND request = ?", (backend, number))
                row = found.fetchone()
                if row is None:
                    continue
                db.execute("DELETE FROM pending WHERE backend = ? AND request = ?", (backend, number))
                if db.execute("SELECT 1 FROM pending WHERE request = ?", (number,)).fetchone() is None:
                    db.execute("DELETE FROM request WHERE id = ?", (number,))
                self._use(backend, -1, -row[0])

        numbers = sorted(ids)
        for start in range(0, len(numbers), REMOVED_AT_ONCE):
            step = numbers[start : start + REMOVED_AT_ONCE]
            await self._do(functools.partial(remove, numbers=step))
            self._gone.difference_update((backend, number) for number in step)

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
            return lost

        def shrink(db: sqlite3.Connection) -> int:
            free: int = db.execute("PRAGMA freelist_count").fetchone()[0]
            for _ in range(min(free, FREE_STEP)):  # Python's sqlite3 runs one step of it, so one page, each time
                db.execute("PRAGMA incremental_vacuum(1)")
            self._is_smaller = 0 < free <= FREE_STEP
            return free

        lost = await self._do(drop)
        for _ in range(FREE_PAGES // FREE_STEP):
            if await self._do(shrink) <= FREE_STEP:
                break
        return lost

    async def settle(self) -> None:
        """Wait until every operation submitted so far has ended."""
        await self._do(lambda _: None)

    def others(self) -> dict[str, int]:
        """By backend that is not configured, its requests in the file; to be called before the first `put`.

        Raises:
            SpoolError: the file cannot be read.
        """
        rows = self._submit(
            lambda db: db.execute("SELECT backend, count(*) FROM pending GROUP BY 1").fetchall()
        ).result()
        return {name: count for name, count in rows if name not in self.usage}

    def close(self) -> None:
        """Finish all operations and close the file."""
        self._end()
        self._thread.join()

    async def stop(self, seconds: float) -> None:
        """As `close`, for at most so many seconds; operations that wait for another process then fail."""
        self._file.close_by = time.monotonic() + seconds / 2
        self._end()
        await asyncio.wait({asyncio.wrap_future(self._ended)}, timeout=seconds)

    def _end(self) -> None:
        self._is_closed = True
        self._jobs.put(None)

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

    def _check_empty(self, db: sqlite3.Connection, backend: str) -> None:
        """Raise DamagedError if requests wait for a backend that were not found by its name: else they wait forever."""
        if self.usage.get(backend, (0,))[0]:
            self._count_in(db)
            if self.usage[backend][0]:
                raise DamagedError("requests that it counts are not found")

    def _drop_unreadable(self, db: sqlite3.Connection, backend: str, numbers: Sequence[object]) -> None:
        """One damaged request must not keep the others from being sent."""
        if numbers:
            db.executemany("DELETE FROM pending WHERE backend = ? AND request = ?", [(backend, n) for n in numbers])
            self._count_in(db)
            self._damaged({backend: len(numbers)})
            _log.error("the queue %s: %d damaged requests for %s are dropped", self._name, len(numbers), backend)

    def _use(self, backend: str, count: int, size: int) -> None:
        if backend in self.usage:
            self.usage[backend][0] += count
            self.usage[backend][1] += size

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Callable[[sqlite3.Connection], _T]) -> concurrent.futures.Future[_T]:
        job = _Job(work, concurrent.futures.Future())
        if self._is_closed:
            job.result.set_exception(SpoolError(f"the queue {self._name}: it is closed"))
        else:
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
        self._file.close()
        self._ended.set_result(None)

    def _transact(self, jobs: list[_Job], attempt: int = 0) -> None:
        db = None
        try:
            db = self._file.begin()
            results = [job.work(db) for job in jobs]
            self._file.commit(db)
        except Exception as error:  # noqa: BLE001  if the thread ended, every sender would wait forever
            is_other_file = self._roll_back(error)
            # One request too large for the disk must not fail the others; without a transaction, all fail alike.
            if is_other_file or (db is not None and len(jobs) > 1):
                for job in jobs:
                    self._transact([job])
            elif attempt < len(self._remedies) and self._remedies[attempt](error):
                self._transact(jobs, attempt + 1)
            else:
                self.is_up = False
                for job in jobs:
                    job.result.set_exception(SpoolError(f"the queue {self._name}: {error}"))
            return
        self.is_up = True
        self._file.note(None)
        if self._is_smaller:
            self._is_smaller = False
            self._file.give_back()
        for job, result in zip(jobs, results, strict=True):
            job.result.set_result(result)

    def _roll_back(self, error: Exception) -> bool:
        """Undo what was begun; True: the file was damaged, and a new one is in use."""
        db = self._file.connection
        if db is None:
            return False
        try:
            if is_damage(error) or is_changed(error):
                self._file.replace_damaged(error)
                return True
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._count_in(db)
        except (sqlite3.Error, OSError) as again:
            _log.error("the queue %s cannot be used (%s)", self._name, again)
        self._file.note(error)
        return False

    def _empty_log(self, error: Exception) -> bool:
        """What may make room on a full disk first; True: it may have."""
        if self._file.connection is None or not self.is_durable or not is_full(error):
            return False
        self._file.empty_log()
        return True

    def _begin_anew(self, error: Exception) -> bool:
        """And last: a new file, if all that waits in this one has been sent and only cannot be removed."""
        db = self._file.connection
        if db is None or not self._gone or not is_full(error):
            return False
        try:
            rows = db.execute("SELECT backend, request FROM pending LIMIT ?", (len(self._gone) + 1,)).fetchall()
            if not self._gone.issuperset(rows):
                return False
            _log.warning("the queue %s: the disk is full, and all that waited is sent: a new one is begun", self._name)
            self._file.begin_anew()
        except (sqlite3.Error, OSError) as again:
            _log.error("the queue %s cannot be used (%s)", self._name, again)
            return False
        return True

    def _count_in(self, db: sqlite3.Connection) -> None:
        found = {name: [0, 0] for name in self._backends}
        for name, count, size in db.execute("SELECT backend, count(*), sum(size) FROM pending GROUP BY 1"):
            if name in found:
                found[name] = [count, int(size)]
        self.usage.update(found)

    def _lost(self) -> None:
        self._damaged({name: count for name, (count, _) in self.usage.items()})
        self.usage.update({name: [0, 0] for name in self._backends})

    def _opened(self, db: sqlite3.Connection) -> None:
        if self._highest and db.execute("SELECT 1 FROM sqlite_sequence").fetchone() is None:
            # A backend may still accept requests of the file before: their numbers must not mean others in this one.
            db.execute("INSERT INTO sqlite_sequence VALUES ('request', ?)", (self._highest,))
        self._count_in(db)


def _item(db: sqlite3.Connection, number: object) -> Item | None:
    """A request as `Spool.put` has written it; None: there is none, or it is damaged."""
    match db.execute("SELECT id, signal, data FROM request WHERE id = ?", (number,)).fetchone():
        case (int() as known, str() as signal, bytes() as data) if signal in METHODS:
            return Item(known, signal, data)
    return None
