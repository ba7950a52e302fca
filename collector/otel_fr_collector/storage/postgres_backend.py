"""The store as a PostgreSQL database, which several collectors share. Each writes what it has found.

While the server is away, rows wait in memory.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import psycopg
from psycopg_pool import PoolTimeout

from otel_fr_collector.incidents.kept import MAX_INCIDENTS
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.backend import DataError, Saved
from otel_fr_collector.storage.batch import Batch
from otel_fr_collector.storage.postgres_connection import Connection, answering, connect
from otel_fr_collector.storage.postgres_migrations import migrate
from otel_fr_collector.storage.postgres_reading import UnreachableError
from otel_fr_collector.storage.postgres_sharing import PostgresSharing
from otel_fr_collector.storage.postgres_writing import prune, write
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.sharing import Heard, Shared
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

RETRY = 2.0
"""Seconds before a server that could not be used is tried again."""
PRUNE_EVERY = 600.0
CLOSE_RETRY = 0.1
"""Seconds between two attempts to write what is pending when the collector ends."""

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
    """The database. Used from one thread at a time; what `PostgresReading` has may be called from any.

    Args:
        url: of the database.
        collector: the id of this collector, the same after its restart.

    Raises:
        DataError: a newer otel-fr has made the tables.
    """

    def __init__(
        self,
        url: str,
        collector: str,
        metrics: Metrics,
        retention: Retention | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, metrics)
        self._url = url
        self.collector = collector
        self._retention = retention or Retention()
        self._wall = wall
        self._pending = Batch()
        self._db: Connection | None = None
        self._retry_at = self._prune_at = 0.0
        self._log = Throttle()
        self._is_new = self._is_closed = self._was_up = self._is_late = False
        metrics.watch_store()
        try:
            self._connected()
        except DataError:
            raise
        except psycopg.Error as error:
            self._is_late = True
            self._fail(error)
        self._metrics.store_up.set(self._db is not None)

    @property
    def is_up(self) -> bool:
        return self._db is not None and not self._pending

    def load(self, limit: int) -> Saved:
        """As `otel_fr_collector.storage.backend.Backend.load`; only what this collector has written last."""
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

    def put(self, batch: Batch) -> None:
        self._pending.add(batch)
        self._flush()

    def share(self, heard: Heard) -> Shared | None:
        """As `otel_fr_collector.storage.sharing.Sharing.share`."""
        if self._db is None:
            return None
        try:
            with answering(self._db):
                return self._share(self._db, heard, self.collector, MAX_INCIDENTS)
        except psycopg.Error as error:
            self._fail(error)
            return None

    def broken(self, error: Exception) -> None:
        """A query has failed. The connection for writes shows whether the server has."""
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

    def take_new(self) -> bool:
        is_new, self._is_new = self._is_new, False
        return is_new

    def take_late(self) -> bool:
        is_late, self._is_late = self._is_late and self._db is not None, self._is_late and self._db is None
        return is_late

    def step(self, now: float) -> None:
        if self._is_closed:
            return
        if not self.is_up and now >= self._retry_at:
            self._flush(again=True)
        if self.is_up and self._db is not None and now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY
            try:
                self.prune()
            except psycopg.errors.QueryCanceled as error:
                _log.warning("the database %s: could not delete old incidents: %s", self._where, error)
            except psycopg.Error as error:
                self._fail(error)

    def prune(self) -> int:
        """Delete what is beyond the retention; returns how many incidents and jobs.

        Raises:
            psycopg.Error: the server does not do it now.
        """
        if self._db is None:
            return 0
        with answering(self._db):
            return prune(self._db, self._retention, self._wall())

    def close(self, until: float = 0.0) -> None:
        self._flush(again=True)
        while not self.is_up and time.monotonic() + CLOSE_RETRY < until:
            time.sleep(CLOSE_RETRY)
            self._flush(again=True)
        if self._pending.incidents:
            _log.error("%s: could not write %d incidents before shutdown", self._where, len(self._pending.incidents))
        self._is_closed = True
        self._disconnect()
        self._pool.close(timeout=0.0)

    # ---- the connection

    def _connected(self) -> Connection:
        """The connection for writes.

        Raises:
            psycopg.Error: there is none now.
            DataError: a newer otel-fr has made the tables.
        """
        if self._db is None:
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
            self._db = db
        return self._db

    def _flush(self, *, again: bool = False) -> None:
        """Write all that waits. After a failure only ``again`` tries before `RETRY` is over."""
        if self._is_closed:
            return
        if again or time.monotonic() >= self._retry_at:
            try:
                db = self._connected()
                if self._pending:
                    with answering(db):
                        write(db, self._pending, self.collector, late=bool(self.problem))
            except (psycopg.Error, OSError) as error:
                self._fail(error)
            else:
                self._pending.clear()
                self._note_up()

    def _note_up(self) -> None:
        self._retry_at = 0.0
        if self.problem:
            self.problem = ""
            _log.warning("can use the database %s again", self._where)
        self._metrics.store_up.set(1)

    def _fail(self, error: Exception) -> None:
        now = time.monotonic()
        self._retry_at = now + RETRY
        self._metrics.store_up.set(0)
        self._metrics.errors.labels("store").inc()
        self.problem = " ".join(str(error).split())
        self._disconnect()
        if self._log.allows(self.problem, now):
            _log.error("cannot use the database %s (%s): keeping incidents in memory", self._where, self.problem)

    def _disconnect(self) -> None:
        if self._db is not None:
            with contextlib.suppress(psycopg.Error):
                self._db.close()
            self._db = None
