"""What every database of the store can do: a SQLite file, or a PostgreSQL server."""

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
"""Incidents, or jobs, that one query returns at most."""
PRUNE_EVERY: Final = 600.0
CLOSE_RETRY: Final = 0.1
"""Seconds between two attempts to write what is pending when the collector ends."""


class StoreError(Exception):
    """The database cannot be read now."""


@dataclass
class Saved:
    """What a database holds at the start, oldest incident first. ``notes``: of these incidents."""

    incidents: list[Incident] = field(default_factory=list)
    runs: list[SavedRun] = field(default_factory=list)
    notes: dict[NoteKey, str] = field(default_factory=dict)


@dataclass
class Turn:
    """The turn to tell a receiver of an incident. ``is_told``: it has received it, before or in this turn."""

    is_told: bool = False


class Heard(NamedTuple):
    """What a collector has of runs at one moment.

    Attributes:
        new: runs that it hears of, and has not asked the database for yet.
        firing: the runs with open incidents; true: their ranks report to this collector.
    """

    new: Collection[RunId]
    firing: dict[RunId, bool]


@dataclass
class Shared:
    """What a database that other collectors use says to that.

    Attributes:
        taken: what it has of the new runs, and of runs with open incidents whose collector has died.
        lost: runs that do not report here, whose incidents another collector continues.
        changed: incidents that other collectors have changed since the last answer, oldest first.
    """

    taken: Saved = field(default_factory=Saved)
    lost: set[RunId] = field(default_factory=set)
    changed: list[CollectorIncidentData] = field(default_factory=list)


class Backend(ABC):
    """A database. It is for one thread at a time, and does not raise; its queries are those of `StoredRows`.

    Args:
        where: names the database in the log.

    Attributes:
        errors: what is raised in here, and by queries, if the database cannot be used.
        busy_seconds: how long one attempt to write may wait for a lock.
        is_shared: other collectors may use it, too: it has `share` and `turn`.
        problem: why it cannot be used now; empty: it can.
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
        """The open incidents, the newest resolved ones (``limit`` together at most), and the runs of the open ones."""

    # ---- between collectors

    def share(self, heard: Heard) -> Shared | None:
        """Mark the open incidents that this collector continues; None: the database does not answer now."""
        raise NotImplementedError

    def turn(self, outlet: str, number: str, mark: str) -> AbstractContextManager[Turn]:
        """As `otel_fr_collector.storage.store.Store.turn`, from any thread; raises one of ``errors``, too."""
        raise NotImplementedError

    # ---- what differs between databases; these raise one of `errors`

    @property
    @abstractmethod
    def _retry_seconds(self) -> float:
        """Before what could not be written is tried again."""

    @abstractmethod
    def _connect(self) -> Any:
        """A connection for writes. Raises NewerVersionError if a newer otel-fr has made the tables."""

    @abstractmethod
    def _write(self) -> None:
        """Write all that is pending, in one transaction."""

    @abstractmethod
    def prune(self) -> int:
        """Delete what is beyond the retention; returns how many incidents and jobs."""

    @abstractmethod
    def broken(self, error: Exception) -> None:
        """A query, or a write, has failed with one of ``errors``."""

    # ---- what is written

    def _begin(self) -> None:
        """Open the database; raises NewerVersionError as `_connect`."""
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
        """Everything given to `put` is in the database."""
        return self._db is not None and not self._pending and not self.problem

    def put(self, batch: Batch) -> None:
        """Write these in one transaction. What cannot be written now is written later, within the bounds of `Batch`."""
        self._pending.add(batch)
        self._flush()

    def take_new(self) -> bool:
        """Return True once if an empty database was begun; what is held in memory is then to be saved again."""
        is_new, self._is_new = self._is_new, False
        return is_new

    def take_late(self) -> bool:
        """Return True once if it has become readable after the start; what it holds is then to be loaded."""
        is_late, self._is_late = self._is_late and self._db is not None, self._is_late and self._db is None
        return is_late

    def step(self, now: float) -> None:
        """Retry what could not be written; delete what is beyond the retention. ``now``: monotonic."""
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
        """Write what is pending; nothing is taken after that.

        Args:
            until: monotonic time until when a write that fails is tried again.
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
        """Write all that is pending. After a failure only ``again`` tries before `_retry_seconds` are over."""
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
