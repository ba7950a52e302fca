"""Compares findings with each other and with incidents. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from otel_fr.match import Finding, Place
from otel_fr.match.facts.ranks import EXCUSABLE
from otel_fr_collector import timeline
from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.incidents.resolution import Resolution


def may_come_again(incident: Incident, now: float) -> bool:
    """Whether a wait for the incident's ranks ended a short time ago: they may be late again.

    ``now``: monotonic.
    """
    is_wait = incident.finding.category in EXCUSABLE and incident.cause is None
    return is_wait and incident.over is not None and now - incident.over < timeline.AGAIN_SECONDS


def is_again(finding: Finding, incident: Incident, now: float) -> bool:
    """Whether the finding shows a resolved incident again: the same group waits for the same ranks.

    A rank that is slow in each step is one fault, not one for each step.
    """
    old = incident.finding
    if incident.resolution is not Resolution.OVER or not may_come_again(incident, now) or finding.caused_by is not None:
        return False
    is_alike = finding.category in EXCUSABLE and set(finding.culprit_ranks) == set(old.culprit_ranks) != set()
    return is_alike and finding.group is not None and old.group is not None and finding.group.id == old.group.id


def waits(finding: Finding) -> bool:
    """Whether the finding's ranks still wait, and none has ended."""
    return finding.is_waiting and not finding.ended_ranks


def still(places: Mapping[int, Place], finding: Finding) -> dict[int, Place]:
    """The places of ranks that the finding still names."""
    concerned = {*finding.culprit_ranks, *finding.waiting_ranks}
    return {rank: place for rank, place in places.items() if rank in concerned}


def is_after(later: Finding, earlier: Finding) -> bool:
    """Whether ``later`` follows in the same stream: after one extra or missing call, all later calls mismatch."""
    if later.group is None or earlier.group is None or later.group.id != earlier.group.id:
        return False
    if later.stream != earlier.stream or later.sequence_id is None or earlier.sequence_id is None:
        return False
    return later.sequence_id > earlier.sequence_id
