"""The tables of the file of the backends' queues."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from otel_fr_collector.database_files import check_tables, file_version, table_columns

MAX_LOG_BYTES = 64 * 1024 * 1024
"""The write-ahead log is truncated to this after a large transaction."""
VERSION = 1
_COLUMNS = {
    "request": ["id", "signal", "at", "data"],
    "pending": ["backend", "request", "size"],
    "seen": ["hash", "at"],
}
_SCHEMA = f"""
PRAGMA user_version = {VERSION};
CREATE TABLE IF NOT EXISTS request (id INTEGER PRIMARY KEY AUTOINCREMENT, signal TEXT, at REAL, data BLOB);
CREATE TABLE IF NOT EXISTS pending (backend TEXT, request INTEGER, size INTEGER, PRIMARY KEY (backend, request))
    WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pending_request ON pending (request);
CREATE TABLE IF NOT EXISTS seen (hash BLOB PRIMARY KEY, at REAL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS seen_at ON seen (at);
"""


class NewerVersionError(OSError):
    """A newer otel-fr has written the file; the text says what to do."""


def prepare(db: sqlite3.Connection, path: Path | None) -> None:
    """Make the tables that are missing, and set what is synced when.

    Args:
        path: of the file; None: in memory.

    Raises:
        NewerVersionError: a newer otel-fr has written the file.
        DamagedError: a table has other columns.
    """
    found = file_version(db)
    if found > VERSION:
        raise NewerVersionError(
            f"the queue {path} was written by a newer otel-fr (its version is {found}, this one knows"
            f" {VERSION}): use that otel-fr, or give --data another folder"
        )
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
    # FULL: the log is synced at each commit, so that what is acknowledged also survives a power cut.
    db.execute("PRAGMA synchronous = FULL")
    # A table may be missing: the collector was killed while it made the file.
    check_tables(db, {table: columns for table, columns in _COLUMNS.items() if table_columns(db, table)})
    db.executescript(_SCHEMA)


def merge(db: sqlite3.Connection, other: Path) -> None:
    """Add the requests of another file of this version. They keep their numbers, and come before those that are there.

    A backend may be about to accept some of them, which are then removed by their numbers.

    Raises:
        sqlite3.Error: it cannot be read, or the result not be written; nothing has changed then.
    """
    db.execute("ATTACH ? AS other", (str(other),))
    try:
        db.execute("BEGIN IMMEDIATE")
        try:
            numbers = db.execute("SELECT seq FROM main.sqlite_sequence UNION SELECT seq FROM other.sqlite_sequence")
            shift = max((number for (number,) in numbers), default=0)
            db.execute("UPDATE main.request SET id = id + ?", (shift,))
            db.execute("UPDATE main.pending SET request = request + ?", (shift,))
            db.execute("INSERT INTO main.request SELECT id, signal, at, data FROM other.request")
            db.execute("INSERT INTO main.pending SELECT backend, request, size FROM other.pending")
            db.execute("INSERT OR IGNORE INTO main.seen SELECT hash, at FROM other.seen")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
    finally:
        db.execute("DETACH other")
