"""The store as a PostgreSQL database, which several collectors share. Each writes its own findings.

While the server is away, rows wait in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
from psycopg_pool import PoolTimeout

from otel_fr_collector.incidents.kept import MAX_INCIDENTS
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.backend import Heard, Saved, Shared
from otel_fr_collector.storage.postgres_connection import Connection, answering, connect
from otel_fr_collector.storage.postgres_migrations import migrate
from otel_fr_collector.storage.postgres_reading import UnreachableError
from otel_fr_collector.storage.postgres_sharing import PostgresSharing
from otel_fr_collector.storage.postgres_writing import prune, write
from otel_fr_collector.storage.retention import Retention

RETRY = 2.0
"""Seconds after which an unusable server is tried again."""

_OWN = """
    SELECT memory, data FROM otel_fr.incidents WHERE collector = %s
    ORDER BY state = 'firing' DESC, detected DESC LIMIT %s
"""
_OWN_RUNS = """
    SELECT memory FROM otel_fr.runs AS its
    WHERE EXISTS (SELECT 1 FROM otel_fr.incidents AS one WHERE collector = %s AND state = 'firing'
        AND (its.job, its.attempt, its.run) = (one.job, one.attempt, one.run))
"""


class PostgresBackend(PostgresSharing):
    """The database.

    Args:
        url: the URL of the database.
        collector: the id of this collector. It is the same after a restart.

    Raises:
        NewerVersionError: a newer otel-fr has made the tables.
    """

    def __init__(
        self,
        url: str,
        collector: str,
        metrics: Metrics,
        retention: Retention | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, metrics, retention, wall)
        self._url = url
        self.collector = collector
        self._db: Connection | None = None
        self._was_up = False
        self._begin()

    def load(self, limit: int) -> Saved:
        """Load only incidents that this collector was the last to write, and their runs."""
        if self._db is None:
            return Saved()
        try:
            self._flush(again=True)
            with answering(self._db):
                incidents = self._db.execute(_OWN, (self.collector, limit)).fetchall()
                runs = self._db.execute(_OWN_RUNS, (self.collector,)).fetchall()
                return self._with_notes(self._db, incidents, runs)
        except psycopg.Error as error:
            self.broken(error)
            self._is_late = True
            return Saved()

    def share(self, heard: Heard) -> Shared | None:
        if self._db is None:
            return None
        try:
            with answering(self._db):
                return self._share(self._db, heard, self.collector, MAX_INCIDENTS)
        except psycopg.Error as error:
            self._fail(error)
            return None

    def broken(self, error: Exception) -> None:
        """Use the connection for writes to find out whether the server has failed."""
        if isinstance(error, (UnreachableError, psycopg.DataError)) or self._db is None:
            return
        if isinstance(error, (psycopg.OperationalError, PoolTimeout)):
            try:
                with answering(self._db):
                    self._db.execute("")
                return
            except psycopg.Error as again:
                error = again
        self._fail(error)

    def prune(self) -> None:
        if self._db is None:
            return
        with answering(self._db):
            prune(self._db, self._retention, self._wall())

    def close(self, until: float = 0.0) -> None:
        super().close(until)
        self._pool.close(timeout=0.0)

    @property
    def _retry_seconds(self) -> float:
        return RETRY

    def _connect(self) -> Connection:
        db = connect(self._url)
        try:
            with answering(db):
                is_first = migrate(db)
        except BaseException:
            db.close()
            raise
        if self._pool.closed and not self._was_up:
            self._pool.open()
        self._is_new = self._is_new or (is_first and self._was_up)
        self._was_up = True
        return db

    def _write(self) -> None:
        assert self._db is not None
        with answering(self._db):
            write(self._db, self._pending, self.collector, late=bool(self.problem))

    def _fail(self, error: Exception) -> None:
        super()._fail(error)
        self._disconnect()
