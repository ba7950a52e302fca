"""Creates the tables in the file of incidents, and upgrades a file of an older version."""

from __future__ import annotations

import contextlib
import sqlite3

from otel_fr_collector.database_files import check_tables, file_version, table_columns

TABLES = ("incidents", "runs", "notes", "jobs")
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
    CREATE INDEX incidents_by_cause ON incidents (cause) WHERE cause IS NOT NULL;
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
    CREATE TABLE jobs (
        id TEXT NOT NULL PRIMARY KEY,
        job TEXT NOT NULL,
        ended REAL NOT NULL,
        summary TEXT NOT NULL,
        detail BLOB NOT NULL
    );
    CREATE INDEX jobs_by_time ON jobs (ended);
    """,
)
"""Migration i brings a file of version i (``PRAGMA user_version``) to version i + 1. A released migration never
changes."""


def migrate(db: sqlite3.Connection) -> None:
    """Bring the file to the newest version, each step in one transaction.

    Raises:
        DamagedError: the file's tables do not fit its version.
        sqlite3.Error: the file cannot be read or written.
    """
    for number in range(file_version(db), len(MIGRATIONS)):
        db.executescript(f"BEGIN; {MIGRATIONS[number]}; PRAGMA user_version = {number + 1}; COMMIT;")
    check_tables(db, _columns())


def _columns() -> dict[str, list[str]]:
    """The columns of a file of the newest version, by table."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for migration in MIGRATIONS:
            db.executescript(migration)
        return {table: table_columns(db, table) for table in TABLES}
