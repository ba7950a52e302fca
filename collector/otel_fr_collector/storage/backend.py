"""What every database of the store can do: a SQLite file, or a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.storage.batch import Batch, FinishedJob, NoteKey
from otel_fr_collector.storage.serialization import SavedRun

MAX_PAGE = 1_000
"""Incidents, or jobs, that one query returns at most."""


class StoreError(Exception):
    """The database cannot be read now."""


class DataError(OSError):
    """The database can never be used by this version of otel-fr; the text says what to do."""


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


class Reader(Protocol):
    """Queries. Each may be called from any thread.

    Attributes:
        errors: what they raise if the database cannot be read.
    """

    errors: tuple[type[Exception], ...]

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
        """Incidents as last published, the newest ``limit`` of those that fit, oldest first.

        Args:
            before: only those detected before this Unix time.
            prefix: only incidents of jobs whose name begins with it.
            folded: no consequence whose cause fits the job and state, too.
            max_size: no further ones are read once their JSON has so many characters; None: all.
        """

    def count_consequences(self, causes: Sequence[CollectorIncidentData]) -> list[int]:
        """How many incidents follow from each of these."""

    def get(self, number: str, prefix: str = "") -> CollectorIncidentData | None:
        """The incident with that id, as last published, of a job whose name begins with ``prefix``."""

    def finished(self, *, before: float | None, prefix: str = "", limit: int = MAX_PAGE) -> list[FinishedJob]:
        """Jobs that are over, without their ``detail``: the newest ``limit`` of those that fit, newest first.

        Args:
            before: only those that ended before this Unix time.
            prefix: only those whose name begins with it.
        """

    def finished_job(self, key: str) -> FinishedJob | None:
        """The job of that name in URLs."""


class Backend(Reader, Protocol):
    """A database. Apart from the queries, it is used by one thread at a time; nothing but `load` raises.

    Attributes:
        problem: why it cannot be used now; empty: it can.
    """

    problem: str

    @property
    def is_up(self) -> bool:
        """Everything given to `put` is in the database."""

    def load(self, limit: int) -> Saved:
        """The open incidents, the newest resolved ones (``limit`` together at most), and the runs of the open ones."""

    def put(self, batch: Batch) -> None:
        """Write these in one transaction. What cannot be written now is written later, within the bounds of `Batch`."""

    def broken(self, error: Exception) -> None:
        """A query has failed with one of ``errors``."""

    def take_new(self) -> bool:
        """Return True once if an empty database was begun; what is held in memory is then to be saved again."""

    def take_late(self) -> bool:
        """Return True once if it has become readable after the start; what it holds is then to be loaded."""

    def step(self, now: float) -> None:
        """Retry what could not be written; delete what is beyond the retention. ``now``: monotonic."""

    def close(self, until: float = 0.0) -> None:
        """Write what is pending; nothing is taken after that.

        Args:
            until: monotonic time until when a write that fails is tried again.
        """
