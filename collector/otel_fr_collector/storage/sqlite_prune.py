"""Deletes incidents and jobs beyond the retention from the store's file."""

from __future__ import annotations

import sqlite3

from otel_fr_collector.storage.retention import Retention

PRUNE_BATCH = 100
"""Incidents that one transaction deletes while the file is too large. So it holds the write lock only briefly."""
JOB_BATCH = 10
"""The same for finished jobs. Each takes up to 64 KiB."""
_OLDEST_JOBS = "DELETE FROM jobs WHERE rowid IN (SELECT rowid FROM jobs ORDER BY ended LIMIT ?)"
_OLDEST_INCIDENTS = """
    DELETE FROM incidents WHERE rowid IN (SELECT rowid FROM incidents WHERE state = 'resolved' ORDER BY changed LIMIT ?)
"""


def prune(db: sqlite3.Connection, retention: Retention, wall: float) -> None:
    """Delete resolved incidents and finished jobs beyond the retention.

    Args:
        wall: Unix time in seconds.

    Raises:
        sqlite3.Error: the file cannot be written.
    """
    before = wall - retention.seconds
    with db:
        gone = db.execute("DELETE FROM incidents WHERE state = 'resolved' AND changed < ?", (before,)).rowcount
        jobs = db.execute("DELETE FROM jobs WHERE ended < ?", (before,)).rowcount
    jobs += _shrink(db, retention.size, _OLDEST_JOBS, JOB_BATCH)
    gone += _shrink(db, retention.size, _OLDEST_INCIDENTS, PRUNE_BATCH)
    if gone:
        with db:
            db.execute("DELETE FROM notes WHERE incident NOT IN (SELECT id FROM incidents)")
    if gone or jobs:
        db.executescript("PRAGMA incremental_vacuum")  # execute() would take one step of it, a page


def _shrink(db: sqlite3.Connection, size: int, delete: str, batch: int) -> int:
    """Delete rows, ``batch`` at a time, until at most ``size`` bytes are used or no row is left. Return how many."""
    total = 0
    while _used(db) > size:
        with db:
            gone = db.execute(delete, (batch,)).rowcount
        if not gone:
            break
        total += gone
    return total


def _used(db: sqlite3.Connection) -> int:
    pages, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
