"""Decides when a heartbeat or a section is overdue, only from the program's activity, the limits and the time.

Times are in nanoseconds of the rank's monotonic clock. Limits are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from otel_fr.rank_report import MAX_ACTIVITIES, ReportedActivity
from otel_fr.ring import Activity, Beats

HEARTBEAT: Final = "heartbeat"
SECTION: Final = "section"
OUTSIDE: Final = "outside"


@dataclass(frozen=True, slots=True)
class Watched:
    """An activity that may last too long.

    Attributes:
        kind: `HEARTBEAT`, `SECTION` or `OUTSIDE`.
        name: the section's name.
        since_ns: when the activity began.
        limit_s: how long it may last; None: no limit.
        number: the section's number, unique in the process.
    """

    kind: str
    name: str
    since_ns: int
    limit_s: float | None
    number: int = 0

    def age_s(self, now_ns: int) -> float:
        return max(0.0, (now_ns - self.since_ns) / 1e9)

    def is_overdue(self, now_ns: int) -> bool:
        return self.limit_s is not None and self.age_s(now_ns) > self.limit_s

    @property
    def identity(self) -> tuple[str, int, int]:
        """Identifies the activity until it ends."""
        return self.kind, self.number, self.since_ns


@dataclass(frozen=True, slots=True)
class Given:
    """Limits from the environment (`otel_fr.config.Config`), in seconds; 0: none."""

    heartbeat: float = 0.0
    outside: float = 0.0
    sections: Mapping[str, float] = field(default_factory=dict)


def watched(beats: Beats, sections: Sequence[Activity], given: Given, *, exiting: bool = False) -> list[Watched]:
    """Return the rank's present activities: open sections, time since the last heartbeat, time outside all sections.

    The program's limits take precedence over the environment's. While a section with a limit is open, that limit holds
    and no heartbeat is due.

    Args:
        sections: the open sections of living threads.
        exiting: True if the interpreter ends. No heartbeat is due any more, and no section begins.
    """
    found = [_section(section, given) for section in sections]
    if exiting:
        return found
    if not sections and beats.last_end_ns:
        found.append(Watched(OUTSIDE, "", beats.last_end_ns, beats.outside_limit_ms / 1000 or given.outside or None))
    heartbeat = _heartbeat(beats, found, given.heartbeat)
    return found if heartbeat is None else [*found, heartbeat]


def _section(section: Activity, given: Given) -> Watched:
    limit = section.timeout_ms / 1000 or given.sections.get(section.name)
    return Watched(SECTION, section.name, section.began_ns, limit, section.number)


def _heartbeat(beats: Beats, others: list[Watched], timeout: float) -> Watched | None:
    if beats.last_ns:
        # The end of a section counts like a heartbeat, because none was due inside the section.
        since, limit = max(beats.last_ns, beats.last_end_ns), beats.limit_ms / 1000 or timeout or None
    elif beats.since_ns and beats.first_limit_ms:
        since, limit = max(beats.since_ns, beats.last_end_ns), beats.first_limit_ms / 1000
    else:
        return None
    if any(other.kind == SECTION and other.limit_s is not None for other in others):
        limit = None
    return Watched(HEARTBEAT, "", since, limit)


def reported(items: Iterable[Watched], now_ns: int) -> tuple[ReportedActivity, ...]:
    """Return the activities for the rank report: overdue ones first, then those that have lasted longest."""
    ordered = sorted(items, key=lambda item: (not item.is_overdue(now_ns), item.since_ns))
    return tuple(
        [
            ReportedActivity(
                kind=item.kind,
                name=item.name,
                age_s=round(item.age_s(now_ns), 6),
                limit_s=item.limit_s,
                is_overdue=item.is_overdue(now_ns),
            )
            for item in ordered[:MAX_ACTIVITIES]
        ]
    )
