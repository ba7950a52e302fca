"""The match engine on evidence made by hand, and the part of its verdict that names faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from otel_fr.match import Call, Evidence, Finding, Group, Rank, diagnose

_Incident = TypeVar("_Incident", bound=Mapping[str, Any])

WINDOW = 2.0
"""Seconds after which a call in flight counts as waiting."""


def judge(
    calls: Iterable[Call], ranks: Iterable[Rank], groups: Iterable[Group], world_size: int | None = None
) -> list[Finding]:
    by_id, by_rank = {group.id: group for group in groups}, {rank.rank: rank for rank in ranks}
    return diagnose(Evidence(groups=by_id, calls=list(calls), ranks=by_rank, window=WINDOW, world_size=world_size))


def causes(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that no other one explains."""
    return [finding for finding in findings if finding.caused_by is None]


def cause_incidents(incidents: Iterable[_Incident]) -> list[_Incident]:
    """The same of incidents, as JSON shows them."""
    return [incident for incident in incidents if incident["caused_by"] is None]
