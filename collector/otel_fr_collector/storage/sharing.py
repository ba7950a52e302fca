"""What collectors that share a database learn of each other's incidents through it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.storage.backend import Saved, Turn


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
    """What the database says to that.

    Attributes:
        taken: what it has of the new runs, and of runs with open incidents whose collector has died.
        lost: runs that do not report here, whose incidents another collector continues.
        changed: incidents that other collectors have changed since the last answer, oldest first.
    """

    taken: Saved = field(default_factory=Saved)
    lost: set[RunId] = field(default_factory=set)
    changed: list[CollectorIncidentData] = field(default_factory=list)


class Sharing(Protocol):
    """A database that several collectors may use."""

    def share(self, heard: Heard) -> Shared | None:
        """Mark the open incidents that this collector continues; None: the database does not answer now."""

    def turn(self, outlet: str, number: str, mark: str) -> AbstractContextManager[Turn]:
        """As `otel_fr_collector.storage.store.Store.turn`; may be called from any thread.

        Raises:
            StoreError: another collector has it.
        """
