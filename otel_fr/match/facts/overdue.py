"""Heartbeats and sections of ranks: those that have lasted longer than their limits, and those that may last on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, cast

from otel_fr.match.finding import Category
from otel_fr.match.model import Ending, Overdue, Rank

CATEGORIES: Final = {
    "heartbeat": Category.HEARTBEAT_MISSED,
    "section": Category.SECTION_OVERRUN,
    "outside": Category.SECTION_OVERRUN,
}
"""The kinds of what may be overdue, with the category of the fault."""
EXCUSABLE: Final = frozenset({Category.MISSING_RANK, Category.RANK_STUCK, Category.STRAGGLER})
"""Faults that a section may explain: others wait for its rank. Calls that do not fit together, no section explains."""


class Activity(Protocol):
    """An activity of a rank report (`otel_fr.rank_report.ReportedActivity`)."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def age_s(self) -> float | None: ...
    @property
    def limit_s(self) -> float | None: ...
    @property
    def is_overdue(self) -> bool: ...


def reported(items: Iterable[Activity]) -> tuple[Overdue, ...]:
    """What is overdue of the activities of a rank report."""
    return tuple(
        [
            Overdue(cast("Any", item.kind), item.name, item.age_s, item.limit_s)
            for item in items
            if item.is_overdue and item.age_s is not None and item.limit_s is not None and item.kind in CATEGORIES
        ]
    )


def reported_within(items: Iterable[Activity]) -> Overdue | None:
    """Of the activities of a rank report, what `Rank.within` is.

    Heartbeats are no excuse: one says that its rank worked a moment ago, not how long what it does now may take.
    """
    found: list[Overdue] = []
    for item in items:
        if item.is_overdue:
            return None
        if item.kind == "section" and item.age_s is not None and item.limit_s is not None:
            found.append(Overdue("section", item.name, item.age_s, item.limit_s))
    return max(found, key=lambda item: (item.limit - item.age, item.name), default=None)


def is_excused(info: Rank) -> bool:
    """Its program has said how long what it does may take, and that time is not over."""
    return info.ending is Ending.RUNNING and info.within is not None and not info.overdue


def worst_of(info: Rank) -> Overdue | None:
    """What is overdue of a rank, or was when it ended; None: nothing."""
    if not info.overdue:
        return None
    # A section says more than a heartbeat; of sections, the innermost that is overdue has been open for the shortest.
    order = {"section": 0, "outside": 1, "heartbeat": 2}
    return min(info.overdue, key=lambda item: (order[item.kind], item.age, item.name))


def by_kind(overdue: Mapping[int, Overdue]) -> dict[str, dict[int, Overdue]]:
    """The ranks by what is overdue of them, in rising order."""
    found: dict[str, dict[int, Overdue]] = {}
    for rank, item in sorted(overdue.items()):
        found.setdefault(f"{item.kind} {item.name}".strip(), {})[rank] = item
    return found
