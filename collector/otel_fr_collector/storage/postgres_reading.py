"""Queries to PostgreSQL. They use a few connections of their own, and may be called from any thread."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from otel_fr.incident import CollectorIncidentData
from otel_fr.redaction import hide_password
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.postgres_connection import Connection, answering, configure, conninfo
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.stored_rows import StoredRows, up_to

READERS = 8
"""Connections for queries and outlets. An outlet uses one while it notifies its receiver."""
POOL_SECONDS = 2.0
"""Seconds that a query waits for a connection."""
ROWS_AT_ONCE = 20
"""Rows that the server sends at once: a large incident takes 200 kB."""

_COUNT = "SELECT count(*) FROM otel_fr.incidents WHERE cause = %s AND job = %s AND attempt = %s AND run = %s"
_PLACE = re.compile(r":(\w+)")


class UnreachableError(Exception):
    """The server could not be reached a moment ago, so the query was not sent."""


class PostgresReading(StoredRows):
    """The queries. Each raises one of ``errors`` if the server does not answer.

    Args:
        url: the URL of the database.
    """

    errors: tuple[type[Exception], ...] = (psycopg.Error, PoolTimeout, UnreachableError, OSError)

    def __init__(self, url: str, metrics: Metrics, retention: Retention | None, wall: Callable[[], float]) -> None:
        super().__init__(metrics, hide_password(url), retention, wall)
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            conninfo(url),
            min_size=1,
            max_size=READERS,
            timeout=POOL_SECONDS,
            configure=configure,
            check=_check,
            open=False,
            name="otel-fr store",
        )

    def _rows(self, query: str, given: dict[str, Any], max_size: int | None = None) -> list[Any]:
        query, values = _PLACE.sub(r"%(\1)s", query), {name: as_text(value) for name, value in given.items()}
        with self._reading() as db:
            if max_size is None:
                return db.execute(query.encode(), values).fetchall()
            with db.transaction(), db.cursor("found") as cursor:
                cursor.itersize = ROWS_AT_ONCE
                return up_to(cursor.execute(query.encode(), values), max_size)

    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        keys = [(one["id"], as_text(one["job"]), one["attempt"], as_text(one["run_id"])) for one in causes]
        with self._reading() as db, db.cursor() as cursor:
            if not keys:
                return []
            cursor.executemany(_COUNT, keys, returning=True)
            counts = []
            while True:
                row = cursor.fetchone()
                counts.append(0 if row is None else int(row[0]))
                if not cursor.nextset():
                    return counts

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Provide a connection for a query.

        Raises:
            UnreachableError, PoolTimeout, psycopg.Error: there is no connection now.
        """
        self._check_reachable()
        with self._pool.connection() as db, answering(db):
            yield db

    def _check_reachable(self) -> None:
        if self.problem:
            raise UnreachableError(self.problem)


def as_text(value: Any) -> Any:
    """Replace NUL in a text, since PostgreSQL cannot store it. Return other values as they are."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def run_key(run: RunId) -> tuple[str, int, str]:
    """The values of the columns that identify a run."""
    return as_text(run.job), run.attempt, as_text(run.run)


def _check(connection: Connection) -> None:
    """Raise psycopg.Error if the connection has ended since its last use."""
    with answering(connection, POOL_SECONDS):
        connection.execute("")
