"""The causes in a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from otel_fr.match import Finding

_Incident = TypeVar("_Incident", bound=Mapping[str, Any])


def causes(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that are no consequences."""
    return [finding for finding in findings if finding.caused_by is None]


def cause_incidents(incidents: Iterable[_Incident]) -> list[_Incident]:
    """Like `causes`, for incidents in their JSON form."""
    return [incident for incident in incidents if incident["caused_by"] is None]
