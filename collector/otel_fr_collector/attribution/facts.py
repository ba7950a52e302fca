"""The input of the rules, as plain data: a job's faults by run, and the requests of its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from signal import SIGTERM

from otel_fr.incident import CollectorIncidentData, unix
from otel_fr.presentation import group_name
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.workload import WorkloadRequest

MAX_ERROR = 300
"""Characters of an error that are compared."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Place:
    """A collective of a program. It is equal in all runs of the program."""

    group: str
    operation: str
    number: int


@dataclass(frozen=True)
class Culprit:
    """One rank at which a fault originated. ``node``, ``error`` and ``site`` are empty if they are not known.

    Attributes:
        is_stopped: SIGTERM has ended the rank.
    """

    rank: int
    node: str = ""
    error: str = ""
    site: str = ""
    is_stopped: bool = False

    @cached_property
    def same(self) -> tuple[str, str] | None:
        """Equal for equal Python errors at the same line. None: no Python error has ended the rank."""
        return (comparable(self.error), self.site) if self.error else None


@dataclass(frozen=True)
class Fault:
    """One cause among a job's incidents.

    Attributes:
        detected: Unix seconds.
        place: the collective in which the fault shows. None: it shows in none.
    """

    incident: str
    run: RunId
    category: str
    detected: float
    culprits: tuple[Culprit, ...] = ()
    place: Place | None = None
    summary: str = ""

    @property
    def nodes(self) -> frozenset[str]:
        """The known nodes of the culprits."""
        return frozenset(culprit.node for culprit in self.culprits if culprit.node)


@dataclass(frozen=True)
class History:
    """A job's faults and requests.

    Attributes:
        now: the faults of the run for which the launcher asks, oldest first.
        before: the faults of the job's other runs.
        requests: the requests of the run's ranks.
    """

    now: tuple[Fault, ...] = ()
    before: tuple[Fault, ...] = ()
    requests: tuple[WorkloadRequest, ...] = ()

    @property
    def all(self) -> tuple[Fault, ...]:
        return self.before + self.now


def comparable(error: str) -> str:
    """The first line of an error, without memory addresses, which differ from run to run."""
    return _ADDRESS.sub("0x", error.partition("\n")[0].strip())[:MAX_ERROR]


def fault_of(data: CollectorIncidentData) -> Fault:
    """The fault that an incident shows."""
    group, number = data["process_group"], data["sequence_id"]
    place = None
    if group is not None and number is not None:
        place = Place(group_name(group["name"], group["description"]), data["operation"] or "", number)
    known = {culprit["rank"]: culprit for culprit in data["culprits"]}
    culprits = []
    for rank in data["culprit_ranks"]:
        own, place_of = known.get(rank), data["places"].get(str(rank))  # of the first 16 and 256 culprits
        node = own["host"] if own else (place_of and place_of["host"]) or ""
        site = data["call_sites"].get(str(rank), "")
        is_stopped = own is not None and own.get("signal") == SIGTERM
        culprits.append(Culprit(rank, node, own["error"] if own else "", site, is_stopped))
    return Fault(
        incident=data["id"],
        run=RunId(data["job"], data["attempt"], data["run_id"]),
        category=data["category"],
        detected=unix(data["detected_at"]) or 0.0,
        culprits=tuple(culprits),
        place=place,
        summary=data["summary"],
    )


def faults_of(incidents: Iterable[CollectorIncidentData]) -> list[Fault]:
    """The faults of incidents that are causes, oldest first. Consequences add no information."""
    found = [fault_of(data) for data in incidents if data["caused_by"] is None]
    return sorted(found, key=lambda fault: fault.detected)
