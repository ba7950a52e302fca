"""When a heartbeat or a section is overdue: functions of what the program told, the limits and the time only.

All times are the rank's monotonic clock in nanoseconds, limits are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from otel_fr.rank_report import MAX_ACTIVITIES, ReportedActivity
from otel_fr.ring import Activity, Beats

HEARTBEAT: Final = "heartbeat"
SECTION: Final = "section"
OUTSIDE: Final = "outside"


class Limits(Protocol):
    """Limits in seconds that were learned; None: none is known."""

    def heartbeat(self) -> float | None: ...

    def section(self, name: str) -> float | None: ...

    def outside(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Watched:
    """Something that may last too long.

    Attributes:
        kind: `HEARTBEAT`, `SECTION` or `OUTSIDE`. name: of a section.
        since_ns: when it began. limit_s: None: it has no limit. number: of a section, unique in the process.
    """

    kind: str
    name: str
    since_ns: int
    limit_s: float | None
    is_learned: bool = False
    number: int = 0

    def age_s(self, now_ns: int) -> float:
        return max(0.0, (now_ns - self.since_ns) / 1e9)

    def is_overdue(self, now_ns: int) -> bool:
        return self.limit_s is not None and self.age_s(now_ns) > self.limit_s

    @property
    def identity(self) -> tuple[str, int, int]:
        """The same until it is over."""
        return self.kind, self.number, self.since_ns


@dataclass(frozen=True, slots=True)
class Given:
    """Limits of the environment (`otel_fr.config.Config`), in seconds; 0: none."""

    heartbeat: float = 0.0
    outside: float = 0.0
    sections: Mapping[str, float] = field(default_factory=dict)


def watched(
    beats: Beats, sections: Sequence[Activity], learned: Limits, given: Given, *, exiting: bool = False
) -> list[Watched]:
    """What the rank is in now: its open sections, the time since its last heartbeat, or the time outside all sections.

    What the program gives takes precedence over the environment, and that over what was learned. While a section with
    a limit is open, that limit holds and no heartbeat is due; no learned limit for heartbeats holds in any section,
    because a section is a part of the program that the program itself set apart, such as an evaluation.

    Args:
        sections: open, of threads that live.
        exiting: the interpreter ends: no heartbeat is due any more, and no section begins.
    """
    found = [_section(section, learned, given) for section in sections]
    if exiting:
        return found
    if not sections and beats.last_end_ns:
        own = beats.outside_limit_ms / 1000 or given.outside or None
        limit = own or learned.outside()
        found.append(Watched(OUTSIDE, "", beats.last_end_ns, limit, is_learned=own is None and limit is not None))
    heartbeat = _heartbeat(beats, found, learned, given.heartbeat)
    return found if heartbeat is None else [*found, heartbeat]


def _section(section: Activity, learned: Limits, given: Given) -> Watched:
    own = section.timeout_ms / 1000 or given.sections.get(section.name)
    limit = own or learned.section(section.name)
    is_learned = own is None and limit is not None
    return Watched(SECTION, section.name, section.began_ns, limit, is_learned, section.number)


def _heartbeat(beats: Beats, others: list[Watched], learned: Limits, timeout: float) -> Watched | None:
    if beats.last_ns:
        # The end of a section in which no heartbeat was due is as good as one.
        since, given = max(beats.last_ns, beats.last_end_ns), beats.limit_ms / 1000 or timeout or None
    elif beats.since_ns and beats.first_limit_ms:
        since, given = max(beats.since_ns, beats.last_end_ns), beats.first_limit_ms / 1000
    else:
        return None
    sections = [other for other in others if other.kind == SECTION]
    if any(section.limit_s is not None for section in sections):
        return Watched(HEARTBEAT, "", since, None)
    limit = given or (None if sections or not beats.last_ns else learned.heartbeat())
    return Watched(HEARTBEAT, "", since, limit, is_learned=given is None and limit is not None)


def reported(items: Iterable[Watched], now_ns: int) -> tuple[ReportedActivity, ...]:
    """As the rank report has it: what is overdue first, then what has lasted longest."""
    ordered = sorted(items, key=lambda item: (not item.is_overdue(now_ns), item.since_ns))
    return tuple(
        [
            ReportedActivity(
                kind=item.kind,
                name=item.name,
                age_s=round(item.age_s(now_ns), 6),
                limit_s=item.limit_s,
                is_learned=item.is_learned,
                is_overdue=item.is_overdue(now_ns),
            )
            for item in ordered[:MAX_ACTIVITIES]
        ]
    )
