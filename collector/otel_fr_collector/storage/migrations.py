"""The schema of the file of incidents, and how a file of an older version is brought up to date."""

from __future__ import annotations

import sqlite3
from pathlib import Path

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE incidents (
        id TEXT NOT NULL,
        job TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        run TEXT NOT NULL,
        state TEXT NOT NULL,
        category TEXT NOT NULL,
        cause TEXT,
        detected REAL NOT NULL,
        changed REAL NOT NULL,
        data TEXT NOT NULL,
        memory TEXT NOT NULL,
        PRIMARY KEY (id, job, attempt, run)
    );
    CREATE INDEX incidents_by_time ON incidents (detected);
    CREATE INDEX incidents_by_state ON incidents (state, changed);
    CREATE TABLE runs (
        job TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        run TEXT NOT NULL,
        memory TEXT NOT NULL,
        PRIMARY KEY (job, attempt, run)
    );
    CREATE TABLE notes (
        outlet TEXT NOT NULL,
        incident TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (outlet, incident)
    );
    """,
)
"""Statement i brings a file of version i (``PRAGMA user_version``) to version i + 1. Never changed once released."""


class DataError(OSError):
    """The data folder cannot be used; the text says what to do."""


def migrate(db: sqlite3.Connection, path: Path) -> None:
    """Bring the file to the newest version, each step in one transaction.

    Raises:
        DataError: a newer otel-fr has written the file.
        sqlite3.Error: it cannot be read or written.
    """
    version: int = db.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise DataError(
            f"{path} was written by a newer otel-fr (its version is {version}, this one knows {len(MIGRATIONS)}):"
            " use that otel-fr, or give --data another folder"
        )
    for number in range(version, len(MIGRATIONS)):
        db.executescript(f"BEGIN; {MIGRATIONS[number]}; PRAGMA user_version = {number + 1}; COMMIT;")
