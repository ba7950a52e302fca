"""The file of the backends' queues while the collector runs: opened, followed when it is moved, replaced if damaged."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otel_fr_collector.database_files import (
    SUFFIXES,
    Found,
    OpenedFile,
    is_changed,
    is_damage,
    is_lasting,
    is_locked,
    move_aside,
    open_file,
)
from otel_fr_collector.forward.spool_schema import NewerVersionError, merge, prepare

_log = logging.getLogger(__name__)

BUSY = 5.0
"""Seconds for which an operation waits for another process (sqlite3 in a shell) before it fails."""
BUSY_STEP = 0.1
"""Seconds of it that SQLite itself waits: between two of these the end of the collector is noticed."""
REOPEN = 1.0
"""Seconds from one attempt to open a file while the collector runs to the next."""
LOG_BYTES = 1 << 20
"""Room that the write-ahead log has from the start, so that requests can be removed when the disk is full: removing
`otel_fr_collector.forward.spool.REMOVED_AT_ONCE` of them writes at most about 100 pages of 4 KiB."""
REOPEN_FAILING = 10.0
"""Seconds of I/O errors after which the file is opened again: its disk may have been away."""


class UnusableError(OSError):
    """There is no file now; the log says why."""


class SpoolFile:
    """One file, or a database in memory. Used by one thread, except for `close_by`.

    Args:
        path: None: in memory.
        opened: called with each new connection.
        damaged: called when a damaged file was moved aside, before a new one is opened.

    Attributes:
        close_by: monotonic time until when an operation may wait.

    Raises:
        NewerVersionError: a newer otel-fr has written the file.
    """

    def __init__(
        self,
        path: Path | None,
        opened: Callable[[sqlite3.Connection], None],
        damaged: Callable[[], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._opened = opened
        self._damaged = damaged
        self._wall = wall
        self._there: OpenedFile | None = None
        self._descriptor: int | None = None
        self._reopen_at = 0.0
        self._failing_since: float | None = None
        self.close_by = float("inf")
        self.connection: sqlite3.Connection | None = None
        try:
            self._open()
        except NewerVersionError:
            raise
        except (sqlite3.Error, OSError) as error:
            _log.error("the queue %s cannot be opened (%s): requests are not accepted until it can", path, error)

    def begin(self) -> sqlite3.Connection:
        """Begin a transaction, in another file if this one is no longer there.

        Raises:
            UnusableError, OSError, sqlite3.Error: there is none that can be used now.
        """
        db = self.connection
        if db is not None and self._there is not None and self._there.find() is not Found.SAME:
            self._wait_to_reopen()
            self._follow(db)
        elif db is None:
            self._wait_to_reopen()
            self._open()
        db = self.connection
        assert db is not None
        until = time.monotonic() + BUSY
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                return db
            except sqlite3.OperationalError as error:
                if not is_locked(error) or time.monotonic() >= min(until, self.close_by):
                    raise

    def commit(self, db: sqlite3.Connection) -> None:
        """Commit, once the file itself has room for what the write-ahead log will be written into it.

        Else the log could fill the disk, and never be written into the file: then nothing could be removed either.

        Raises:
            OSError, sqlite3.Error: there is no room; the transaction is to be rolled back.
        """
        if self._descriptor is not None:
            pages = db.execute("PRAGMA page_count").fetchone()[0]
            _allocate(self._descriptor, pages * db.execute("PRAGMA page_size").fetchone()[0])
        db.execute("COMMIT")

    def empty_log(self) -> None:
        """Write the log into the file, so that its room is used again from its beginning; what fails is left."""
        if self.connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("PRAGMA wal_checkpoint").fetchall()

    def give_back(self) -> None:
        """Return the empty pages at the end of the file, and the log but for its first room, to the file system."""
        if self.connection is not None and self._path is not None:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            _extend_log(self._path)

    def begin_anew(self) -> None:
        """Remove the file, whose requests have all been sent, and begin a new one that knows the same hashes.

        Raises:
            sqlite3.Error, OSError: there is none now; the next operation tries again.
        """
        path, db = self._path, self.connection
        assert path is not None
        assert db is not None
        seen = db.execute("SELECT hash, at FROM seen").fetchall()
        self.close()
        for suffix in SUFFIXES:  # the database first: SQLite removes a log that has none
            Path(os.path.realpath(path) + suffix).unlink(missing_ok=True)
        self._open()
        assert self.connection is not None
        self.connection.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?)", seen)

    def replace_damaged(self, error: Exception) -> None:
        """Move the file, which is open, aside, and begin a new one.

        Raises:
            sqlite3.Error, OSError: there is none now; the next operation tries again.
        """
        aside = None if self._path is None else move_aside(self._path, self._wall)
        self.close()
        self._note_damage(error, aside)
        self._open()

    def note(self, error: Exception | None) -> None:
        """Take the outcome of an operation: a file on which all fail for long is opened again."""
        now = time.monotonic()
        if error is None or not is_lasting(error):
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > REOPEN_FAILING:
            self._failing_since = None
            self.close()

    def close(self) -> None:
        """Close it; the next operation opens it again."""
        if self.connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self.connection.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
        self.connection = self._there = self._descriptor = None

    def _wait_to_reopen(self) -> None:
        now = time.monotonic()
        if now < self._reopen_at:
            raise UnusableError("it cannot be opened; the log says why")
        self._reopen_at = now + REOPEN

    def _open(self) -> None:
        """Raises sqlite3.Error, OSError."""
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False, "timeout": BUSY_STEP}
        path = self._path
        if path is None:
            self.connection = sqlite3.connect(":memory:", **options)
            prepare(self.connection, None)
        else:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept = _kept(path)
            if kept.exists() and not os.path.lexists(path):
                kept.rename(path)
            db = open_file(path, lambda db: prepare(db, path), self._note_damage, wall=self._wall, **options)
            self.connection, self._there = db, OpenedFile(path)
            # Closed after the connection: closing it before would drop SQLite's locks on the file.
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            _extend_log(path)
            if kept.exists():
                self._merge(db, kept)
        self._opened(self.connection)

    def _follow(self, db: sqlite3.Connection) -> None:
        """Go on in the file that is now at the path, or in a new one, with all that waits in the old one.

        Raises:
            sqlite3.Error, OSError: it cannot be copied, or the other file not be opened; nothing is lost yet.
        """
        path = self._path
        there = self._there
        assert path is not None
        assert there is not None
        is_other = there.find() is Found.OTHER
        if is_other:
            _log.error(
                "the queue %s was removed or replaced while the collector was running: what waits is saved there", path
            )
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _copy(db, _kept(path))
            if path.exists() and path.stat().st_size == 0:
                path.unlink()  # else the end of the old connection would write its log into it
        self.close()
        if is_other:
            there.remove_log()
        self._open()

    def _merge(self, db: sqlite3.Connection, kept: Path) -> None:
        try:
            merge(db, kept)
            kept.unlink()
        except (sqlite3.Error, OSError) as error:
            if not is_damage(error) and not is_changed(error):
                self.close()
                raise
            self._note_damage(error, move_aside(kept, self._wall))

    def _note_damage(self, error: Exception, aside: Path | None) -> None:
        kept = "" if aside is None else f" it is kept as {aside.name}, and"
        _log.error("the queue %s is damaged (%s):%s a new one is begun", self._path or "in memory", error, kept)
        self._damaged()


def _extend_log(path: Path) -> None:
    """Give the write-ahead log its first room. SQLite ignores what is after its last valid frame."""
    with contextlib.suppress(OSError), open(os.path.realpath(path) + "-wal", "r+b") as log:
        _allocate(log.fileno(), LOG_BYTES)


def _allocate(descriptor: int, size: int) -> None:
    """Give a file room for so many bytes.

    Raises:
        OSError: there is none.
    """
    now = os.fstat(descriptor).st_size
    if now < size:
        try:
            os.posix_fallocate(descriptor, now, size - now)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # this file system promises no room
                raise


def _kept(path: Path) -> Path:
    """Where the content of a file is kept that is no longer at its path, until it is there again."""
    return path.with_name(path.name + ".kept")


def _copy(db: sqlite3.Connection, path: Path) -> None:
    """Copy all of a database into a file, which is whole and on disk once it has that name.

    Raises:
        sqlite3.Error, OSError: it cannot be read or written.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        db.execute("VACUUM INTO ?", (str(unfinished),))
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
