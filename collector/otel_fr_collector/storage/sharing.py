"""What collectors that share a database tell each other through it: which run is whose, and what each shows of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.storage.backend import Saved


class Claim(NamedTuple):
    """A run that a collector wants to own, or to go on owning.

    Attributes:
        is_heard: its ranks report to this collector now.
        is_own: it was this collector's by the last answer.
        summary: JSON, as in the list of jobs; "": as before.
    """

    run: RunId
    is_heard: bool
    is_own: bool
    summary: str


class SharedJob(NamedTuple):
    """A run that another collector judges.

    Attributes:
        summary: as in the list of jobs. page: of that collector; "": not known.
    """

    job: str
    summary: Mapping[str, object]
    page: str


@dataclass
class Shared:
    """An answer to the claims of one moment.

    Attributes:
        own: the runs that are this collector's.
        taken: what the database has of those that it did not own before.
        jobs: of the other collectors.
        changed: incidents that other collectors have changed since the last answer, oldest first.
    """

    own: set[RunId] = field(default_factory=set)
    taken: Saved = field(default_factory=Saved)
    jobs: list[SharedJob] = field(default_factory=list)
    changed: list[CollectorIncidentData] = field(default_factory=list)


class Sharing(Protocol):
    """A database that several collectors may use."""

    def share(self, claims: Sequence[Claim], page: str) -> Shared | None:
        """Claim runs, and look at what the other collectors have.

        Args:
            page: the URL of this collector's page.

        Returns:
            None: the database does not answer now.
        """
