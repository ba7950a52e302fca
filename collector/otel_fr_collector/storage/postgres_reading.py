"""What is read from PostgreSQL, by a few connections of its own: from any thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from otel_fr.incident import CollectorIncidentData
from otel_fr.redaction import hide_password
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.backend import MAX_PAGE
from otel_fr_collector.storage.batch import FinishedJob
from otel_fr_collector.storage.postgres_connection import Connection, answering, configure, conninfo
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.stored_rows import StoredRows, up_to

READERS = 8
"""Connections for queries and for the outlets. An outlet has one while it tells its receiver something."""
POOL_SECONDS = 2.0
"""Seconds that a query waits for one of them."""
ROWS_AT_ONCE = 20
"""Incidents that the server sends at once: a large one takes 200 kB."""

_FIND = """
    SELECT data, state, memory FROM otel_fr.incidents AS one
    WHERE (%(job)s::text IS NULL OR job = %(job)s) AND (%(state)s::text IS NULL OR state = %(state)s)
    AND (%(before)s::double precision IS NULL OR detected < %(before)s) AND starts_with(job, %(prefix)s)
    AND (NOT %(folded)s OR NOT EXISTS (
        SELECT 1 FROM otel_fr.incidents AS cause WHERE cause.id = one.cause
        AND cause.job = one.job AND cause.attempt = one.attempt AND cause.run = one.run
        AND (%(state)s::text IS NULL OR cause.state = %(state)s)))
    ORDER BY detected DESC LIMIT %(limit)s
"""
_COUNT = "SELECT count(*) FROM otel_fr.incidents WHERE cause = %s AND job = %s AND attempt = %s AND run = %s"
_GET = """
    SELECT data, state, memory FROM otel_fr.incidents WHERE id = %s AND starts_with(job, %s)
    ORDER BY detected DESC LIMIT 1
"""
_FINISHED = """
    SELECT id, job, ended, summary, ''::bytea FROM otel_fr.jobs
    WHERE (%(before)s::double precision IS NULL OR ended < %(before)s) AND starts_with(job, %(prefix)s)
    ORDER BY ended DESC LIMIT %(limit)s
"""


class UnreachableError(Exception):
    """The server could not be reached a moment ago; it is not asked now."""


class PostgresReading(StoredRows):
    """Queries; each raises one of ``errors`` if the server does not answer them.

    Args:
        url: of the database.
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

    def find(
        self,
        *,
        job: str | None,
        state: str | None,
        before: float | None = None,
        prefix: str = "",
        limit: int = MAX_PAGE,
        max_size: int | None = None,
        folded: bool = False,
    ) -> list[CollectorIncidentData]:
        given = {"job": as_text(job), "state": state, "before": before, "prefix": as_text(prefix), "folded": folded}
        with self._reading() as db, db.transaction(), db.cursor("found") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            cursor.execute(_FIND, {**given, "limit": min(limit, MAX_PAGE)})
            rows = up_to(cursor, max_size)
        return self._published(rows)

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

    def get(self, number: str, prefix: str = "") -> CollectorIncidentData | None:
        with self._reading() as db:
            row = db.execute(_GET, (as_text(number), as_text(prefix))).fetchone()
        return next(iter(self._published([row] if row else [])), None)

    def finished(self, *, before: float | None, prefix: str = "", limit: int = MAX_PAGE) -> list[FinishedJob]:
        given = {"before": before, "prefix": as_text(prefix), "limit": min(limit, MAX_PAGE)}
        with self._reading() as db:
            rows = db.execute(_FINISHED, given).fetchall()
        return self._finished(rows)

    def finished_job(self, key: str) -> FinishedJob | None:
        query = "SELECT id, job, ended, summary, detail FROM otel_fr.jobs WHERE id = %s"
        with self._reading() as db:
            row = db.execute(query, (as_text(key),)).fetchone()
        return next(iter(self._finished([row] if row else [])), None)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A connection for a query.

        Raises:
            UnreachableError, PoolTimeout, psycopg.Error: there is none now.
        """
        self._check_reachable()
        with self._pool.connection() as db, answering(db):
            yield db

    def _check_reachable(self) -> None:
        if self.problem:
            raise UnreachableError(self.problem)


def as_text(value: Any) -> Any:
    """A text without NUL, which PostgreSQL cannot hold; what is no text stays as it is."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _check(connection: Connection) -> None:
    """Raise psycopg.Error if the connection has ended since it was used last."""
    with answering(connection, POOL_SECONDS):
        connection.execute("")
