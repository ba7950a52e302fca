"""The decisions in a ring, in the form of rank reports and flight-recorder files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otel_fr import rank_report
from otel_fr.decision_names import EVENTS
from otel_fr.rank_report import ReportedDecision
from otel_fr.ring import Decided, DecisionReader

RUNS: Final = 4
"""Newest runs of equal values that are kept for each name. They show where ranks begin to differ, and the value
before."""
EVENTS_KEPT: Final = 8
"""Newest events that are kept for each name: a change of shapes compiles several functions again."""
MAX_VALUE: Final = 80
"""Characters of a value. The ring has as many bytes."""


def reported_decisions(reader: DecisionReader | None, noticed: Sequence[Decided]) -> tuple[ReportedDecision, ...]:
    """The newest runs of equal values for each name, in the order in which they were decided.

    Args:
        reader: None: the ring has no decisions.
        noticed: decisions that were derived from other data of the ring (`otel_fr.dumps.step_calls`).
    """
    told = _newest(reader.decided() if reader is not None and reader.newest() else ())[-rank_report.MAX_DECISIONS :]
    # If there is not room for all decisions, the program's own come first.
    room = rank_report.MAX_DECISIONS - len(told)
    items = told + (_newest(noticed)[-room:] if room else [])
    return tuple([_reported(item) for item in sorted(items, key=lambda item: item.decided_ns)])


def _newest(items: Iterable[Decided]) -> list[Decided]:
    by_name: dict[str, list[Decided]] = {}
    for item in items:
        by_name.setdefault(item.name, []).append(item)
    kept = (item for name, of in by_name.items() for item in of[-(EVENTS_KEPT if name in EVENTS else RUNS) :])
    return sorted(kept, key=lambda item: item.decided_ns)


def _reported(item: Decided) -> ReportedDecision:
    step = None if item.step < 0 else item.step
    return ReportedDecision(item.name, item.value[:MAX_VALUE], item.digest, item.first, item.last, step)
