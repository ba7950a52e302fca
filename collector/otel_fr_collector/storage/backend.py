"""The interface of the store's databases: a SQLite file or a PostgreSQL server."""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.database_files import NewerVersionError
from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.storage.batch import Batch, NoteKey
from otel_fr_collector.storage.retention import Retention
from otel_fr_collector.storage.serialization import SavedRun
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

MAX_PAGE = 1_000
"""Most incidents or jobs that one query returns."""
PRUNE_EVERY: Final = 600.0
CLOSE_RETRY: Final = 0.1
"""Seconds between two attempts to write pending rows when the collector ends."""


class StoreError(Exception):
    """The database cannot be read now."""


@dataclass
class Saved:
    """What is restored from a database, the oldest incident first. ``notes`` are about these incidents."""

    incidents: list[Incident] = field(default_factory=list)
    runs: list[SavedRun] = field(default_factory=list)
    notes: dict[NoteKey, str] = field(default_factory=dict)


@dataclass
class Turn:
    """A collector's turn to notify a receiver. ``is_told``: the receiver was notified, before or in this turn."""

    is_told: bool = False


class Heard(NamedTuple):
    """The runs of this collector at one moment.

    Attributes:
        new: runs that report, and for which the collector has not asked the database yet.
        firing: the runs with open incidents. True: their ranks report to this collector.
    """

    new: Collection[RunId]
    firing: dict[RunId, bool]


@dataclass
class Shared:
    """The answer of a database, which other collectors use too, to `Heard`.

    Attributes:
        taken: the stored state of the new runs, and of runs with open incidents whose collector has died.
        lost: runs that do not report here, and whose incidents another collector continues.
        changed: incidents that other collectors have changed since the last answer, oldest first.
    """

    taken: Saved = field(default_factory=Saved)
    lost: set[RunId] = field(default_factory=set)
    changed: list[CollectorIncidentData] = field(default_factory=list)


class Backend(ABC):
    """A database. One thread may use it at a time. `StoredRows` adds the queries.

    The public methods raise nothing if the database cannot be used, except where they say so.

    Args:
        where: the name of the database in the log.

    Attributes:
        errors: what internal methods and queries raise if the database cannot be used.
        busy_seconds: how long one attempt to write may wait for a lock.
        is_shared: whether other collectors may use the database, so that it has `share` and `turn`.
        problem: why the database cannot be used now. Empty: it can.
    """

    errors: tuple[type[Exception], ...]
    busy_seconds = 0.0
    is_shared = False

    def __init__(self, metrics: Metrics, where: str, retention: Retention | None, wall: Callable[[], float]) -> None:
        self._metrics = metrics
        self._where = where
        self._retention = retention or Retention()
        self._wall = wall
        self._pending = Batch()
        self._db: Any = None
        self._retry_at = self._prune_at = 0.0
        self._log = Throttle()
        self._is_new = self._is_late = self._is_closed = False
        self.problem = ""

    @abstractmethod
    def load(self, limit: int) -> Saved:
        """Load the open and the newest resolved incidents, at most ``limit`` in total, and the runs of open ones."""

    # ---- between collectors

    def share(self, heard: Heard) -> Shared | None:
        """Mark the open incidents that this collector continues, and return what others have changed.

        None: the database does not answer now.
        """
        raise NotImplementedError

    def turn(self, outlet: str, number: str, mark: str) -> AbstractContextManager[Turn]:
        """Like `otel_fr_collector.storage.store.Store.turn`. For any thread. May also raise one of ``errors``."""
        raise NotImplementedError

    # ---- what differs between databases; these methods may raise one of `errors`

    @property
    @abstractmethod
    def _retry_seconds(self) -> float:
        """Seconds before a failed write is tried again."""

    @abstractmethod
    def _connect(self) -> Any:
        """Connect for writing. Raises NewerVersionError if a newer otel-fr has made the tables."""

    @abstractmethod
    def _write(self) -> None:
        """Write all pending rows in one transaction."""

    @abstractmethod
    def prune(self) -> None:
        """Delete incidents and jobs beyond the retention."""

    @abstractmethod
    def broken(self, error: Exception) -> None:
        """Handle a query or a write that has failed with one of ``errors``."""

    # ---- what is written

    def _begin(self) -> None:
        """Open the database. Raises NewerVersionError like `_connect`."""
        self._metrics.watch_store()
        try:
            self._db = self._connect()
        except NewerVersionError:
            raise
        except self.errors as error:
            self._is_late = True
            self._fail(error)
        self._metrics.store_up.set(self._db is not None)

    @property
    def is_up(self) -> bool:
        """Whether everything given to `put` is in the database."""
        return self._db is not None and not self._pending and not self.problem

    def put(self, batch: Batch) -> None:
        """Write a batch in one transaction. What cannot be written now waits, within the bounds of `Batch`."""
        self._pending.add(batch)
        self._flush()

    def take_new(self) -> bool:
        """Return True once if an empty database was begun. The caller must then save its incidents again."""
        is_new, self._is_new = self._is_new, False
        return is_new

    def take_late(self) -> bool:
        """Return True once if the database has become readable after the start. The caller must then load it."""
        is_late, self._is_late = self._is_late and self._db is not None, self._is_late and self._db is None
        return is_late

    def step(self, now: float) -> None:
        """Retry failed writes, and delete what is beyond the retention. ``now``: monotonic time."""
        if self._is_closed:
            return
        if not self.is_up and now >= self._retry_at:
            self._flush(again=True)
        if self.is_up and now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY
            try:
                self.prune()
            except self.errors as error:
                _log.warning("%s: could not delete old incidents: %s", self._where, error)
                self.broken(error)

    def close(self, until: float = 0.0) -> None:
        """Write pending rows and close the database. It accepts no rows after that.

        Args:
            until: monotonic time until which a failed write is tried again.
        """
        self._flush(again=True)
        while not self.is_up and time.monotonic() + self.busy_seconds + CLOSE_RETRY < until:
            time.sleep(CLOSE_RETRY)
            self._flush(again=True)
        if self._pending.incidents:
            _log.error("%s: could not write %d incidents before shutdown", self._where, len(self._pending.incidents))
        self._is_closed = True
        self._disconnect()

    def _flush(self, *, again: bool = False) -> None:
        """Write all pending rows. Within `_retry_seconds` of a failure, only if ``again`` is true."""
        if self._is_closed or (not again and time.monotonic() < self._retry_at):
            return
        try:
            if self._db is None:
                self._db = self._connect()
            if self._pending:
                self._write()
        except self.errors as error:
            self._note_failed_write(error)
            return
        self._pending.clear()
        self._retry_at = 0.0
        if self.problem:
            self.problem = ""
            _log.warning("can write %s again", self._where)
        self._metrics.store_up.set(1)

    def _note_failed_write(self, error: Exception) -> None:
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        now = time.monotonic()
        self._retry_at = now + self._retry_seconds
        self._metrics.store_up.set(0)
        self._metrics.errors.labels("store").inc()
        self.problem = " ".join(str(error).split())
        if self._log.allows(self.problem, now):
            _log.error("cannot write %s (%s): keeping incidents in memory only", self._where, self.problem)

    def _disconnect(self) -> None:
        if self._db is not None:
            with contextlib.suppress(*self.errors):
                self._db.close()
            self._db = None
