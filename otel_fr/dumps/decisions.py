"""The decisions in a ring, as rank reports and flight-recorder files hold them."""

from __future__ import annotations

from otel_fr import rank_report
from otel_fr.rank_report import ReportedDecision
from otel_fr.ring import Decided, DecisionReader

RUNS = 4
"""Newest runs of equal values that are kept of each name: where ranks begin to differ, and what was before."""


def reported_decisions(reader: DecisionReader | None) -> tuple[ReportedDecision, ...]:
    """The newest runs of each name, in the order in which they were decided; none if the ring has no decisions."""
    if reader is None or not reader.newest():
        return ()
    by_name: dict[str, list[Decided]] = {}
    for item in reader.decided():
        by_name.setdefault(item.name, []).append(item)
    kept = sorted((item for of in by_name.values() for item in of[-RUNS:]), key=lambda item: item.decided_ns)
    return tuple([_reported(item) for item in kept[-rank_report.MAX_DECISIONS :]])


def _reported(item: Decided) -> ReportedDecision:
    step = None if item.step < 0 else item.step
    return ReportedDecision(item.name, item.value, item.digest, item.first, item.last, step)
