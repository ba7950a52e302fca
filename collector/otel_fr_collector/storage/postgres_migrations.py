"""Creates the tables in PostgreSQL, all in the schema ``otel_fr``, and upgrades tables of an older version."""

from __future__ import annotations

from otel_fr_collector.database_files import NewerVersionError
from otel_fr_collector.storage.postgres_connection import Connection

LOCK = 0x6F74656C6672
"""Key of the advisory lock that a migration holds: collectors may start at the same time. The bytes of "otelfr"."""
PRUNE_LOCK = LOCK + 1
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE otel_fr.incidents (
        id text NOT NULL,
        job text NOT NULL,
        attempt bigint NOT NULL,
        run text NOT NULL,
        state text NOT NULL,
        category text NOT NULL,
        cause text,
        detected double precision NOT NULL,
        changed double precision NOT NULL,
        data text NOT NULL,
        memory text NOT NULL,
        written timestamptz NOT NULL DEFAULT now(),
        collector text NOT NULL DEFAULT '',
        kept timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (id, job, attempt, run)
    );
    CREATE INDEX incidents_by_writing ON otel_fr.incidents (written);
    CREATE INDEX incidents_by_time ON otel_fr.incidents (detected);
    CREATE INDEX incidents_by_change ON otel_fr.incidents (changed);
    CREATE INDEX incidents_by_run ON otel_fr.incidents (job, attempt, run);
    CREATE INDEX incidents_that_fire ON otel_fr.incidents (detected) WHERE state = 'firing';
    CREATE INDEX incidents_by_collector ON otel_fr.incidents (collector);
    CREATE INDEX incidents_by_cause ON otel_fr.incidents (cause) WHERE cause IS NOT NULL;
    CREATE TABLE otel_fr.runs (
        job text NOT NULL,
        attempt bigint NOT NULL,
        run text NOT NULL,
        memory text NOT NULL,
        PRIMARY KEY (job, attempt, run)
    );
    CREATE TABLE otel_fr.notes (
        outlet text NOT NULL,
        incident text NOT NULL,
        value text NOT NULL,
        PRIMARY KEY (outlet, incident)
    );
    CREATE INDEX notes_by_incident ON otel_fr.notes (incident);
    CREATE TABLE otel_fr.jobs (
        id text NOT NULL PRIMARY KEY,
        job text NOT NULL,
        ended double precision NOT NULL,
        summary text NOT NULL,
        detail bytea NOT NULL
    );
    CREATE INDEX jobs_by_time ON otel_fr.jobs (ended);
    """,
)
"""Migration i brings tables of version i to version i + 1. A released migration never changes."""


_IS_THERE = """
    SELECT 1 FROM pg_catalog.pg_class AS one JOIN pg_catalog.pg_namespace AS its ON its.oid = one.relnamespace
    WHERE its.nspname = 'otel_fr' AND one.relname = 'version'
"""
"""Not to_regclass(): within a transaction it may not see tables that another transaction has made (tried with
PostgreSQL 15)."""


def migrate(connection: Connection) -> bool:
    """Bring the tables to the newest version in one transaction. Return whether there were none before.

    Raises:
        NewerVersionError: a newer otel-fr has made the tables.
        psycopg.Error: the tables cannot be read or written.
    """
    version = _version(connection)
    if version is not None and version >= len(MIGRATIONS):
        _check(version)
        return False
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        version = _version(connection)
        if version is None:
            if connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'otel_fr'").fetchone() is None:
                connection.execute("CREATE SCHEMA otel_fr")
            connection.execute("CREATE TABLE otel_fr.version (number integer NOT NULL)")
            connection.execute("INSERT INTO otel_fr.version VALUES (0)")
        _check(version or 0)
        for migration in MIGRATIONS[version or 0 :]:
            connection.execute(migration.encode())
        connection.execute("UPDATE otel_fr.version SET number = %s", (len(MIGRATIONS),))
    return version is None


def _version(connection: Connection) -> int | None:
    """The version of the tables. None: there are none."""
    if connection.execute(_IS_THERE).fetchone() is None:
        return None
    row = connection.execute("SELECT number FROM otel_fr.version").fetchone()
    return None if row is None else int(row[0])


def _check(version: int) -> None:
    if version > len(MIGRATIONS):
        raise NewerVersionError(
            f"the tables in the database of --store were made by a newer otel-fr (version {version}, this"
            f" one knows {len(MIGRATIONS)}): use that otel-fr, or another database"
        )
