"""Heartbeats and sections of ranks that have lasted longer than their limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from otel_fr.match.finding import Category
from otel_fr.match.model import Overdue, Rank

CATEGORIES: Final = {
    "heartbeat": Category.HEARTBEAT_MISSED,
    "section": Category.SECTION_OVERRUN,
    "outside": Category.SECTION_OVERRUN,
}
"""The kinds of what may be overdue, with the category of the fault."""


def reported(items: Iterable[tuple[str, str, float | None, float | None, bool]]) -> tuple[Overdue, ...]:
    """What is overdue of the activities of a rank report: kind, name, age, limit, overdue."""
    found: list[Overdue] = []
    for kind, name, age, limit, is_overdue in items:
        if is_overdue and age is not None and limit is not None and kind in CATEGORIES:
            found.append(Overdue(cast("Any", kind), name, age, limit))
    return tuple(found)


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
