"""Computes the timeouts of heartbeats and sections from observed times, for `RankMonitorClient`.

Names and meanings follow nvidia-resiliency-ext 0.4, so that its checkpoints can be loaded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LEAST_TIMEOUT: Final = 5.0
"""Shortest computed timeout, in seconds. nvidia-resiliency-ext checks for hanging ranks every 5 s
(``workload_check_interval``), so it finds none earlier. otel-fr's monitor checks several times a second."""


@dataclass
class HeartbeatTimeouts:
    """Timeouts of heartbeats, in seconds; None: no limit.

    Attributes:
        initial: time from the initialisation to the first heartbeat.
        subsequent: time from one heartbeat to the next.
        were_calculated: True if computed from observed times, False if given.
    """

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool | None = None

    @property
    def are_valid(self) -> bool:
        return self.initial is not None and self.subsequent is not None


@dataclass
class SectionTimeouts:
    """Timeouts of sections, in seconds; None: no limit.

    Attributes:
        section: timeouts by name.
        out_of_section: timeout of the time without an open section.
        calculated_sections, is_out_of_section_calculated: which timeouts were computed from observed times.
    """

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: set[str] = field(default_factory=set)
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        self.calculated_sections = set(self.calculated_sections)

    @property
    def were_calculated(self) -> bool:
        return self.calculated_sections == set(self.section) and self.is_out_of_section_calculated

    @property
    def are_valid(self) -> bool:
        return self.out_of_section is not None and all(value is not None for value in self.section.values())


class Observed:
    """The longest observed times, in seconds. ``sections`` has a name once a section of this name has ended.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = clock()
        self._last_beat: float | None = None
        self._open: dict[str, float] = {}
        self._last_end = self._start
        self.first_beat = 0.0
        self.between_beats = 0.0
        self.outside = 0.0
        self.sections: dict[str, float] = {}

    def note_heartbeat(self) -> None:
        now = self._clock()
        if self._last_beat is None:
            self.first_beat = max(self.first_beat, now - self._start)
        else:
            self.between_beats = max(self.between_beats, now - self._last_beat)
        self._last_beat = now

    def is_open(self, name: str) -> bool:
        return name in self._open

    @property
    def open_names(self) -> list[str]:
        return list(self._open)

    def note_start(self, name: str) -> None:
        self.note_outside()
        self._open[name] = self._clock()

    def note_end(self, name: str) -> None:
        now = self._clock()
        self.sections[name] = max(self.sections.get(name, 0.0), now - self._open.pop(name))
        if not self._open:
            self._last_end = now

    def note_outside(self) -> None:
        """If no section is open, count the time since the last one ended."""
        if not self._open:
            self.outside = max(self.outside, self._clock() - self._last_end)

    def times(self) -> dict[str, Any]:
        """Return the times to exchange with other ranks."""
        return {
            "first": self.first_beat,
            "between": self.between_beats,
            "outside": self.outside,
            "sections": dict(self.sections),
        }

    def merge(self, others: Iterable[Mapping[str, Any]]) -> None:
        """Take over times of other ranks that are longer than this rank's."""
        for other in others:
            self.first_beat = max(self.first_beat, other["first"])
            self.between_beats = max(self.between_beats, other["between"])
            self.outside = max(self.outside, other["outside"])
            for name, seconds in other["sections"].items():
                self.sections[name] = max(self.sections.get(name, 0.0), seconds)


def heartbeat_timeouts(observed: Observed, factor: float, current: HeartbeatTimeouts) -> HeartbeatTimeouts | None:
    """Return new timeouts, or None if fewer than two heartbeats were observed.

    If the current timeouts were computed, too, they move only half of the way to the new ones.
    """
    if not (observed.first_beat > 0 and observed.between_beats > 0):
        return None
    were_calculated = bool(current.were_calculated and current.are_valid)
    return HeartbeatTimeouts(
        _moved(current.initial, factor * observed.first_beat, were_calculated),
        _moved(current.subsequent, factor * observed.between_beats, were_calculated),
        were_calculated=True,
    )


def section_timeouts(
    observed: Observed, factor: float, current: SectionTimeouts, selected: Collection[str] | None, with_outside: bool
) -> SectionTimeouts | None:
    """Return new timeouts, or None if a required time was not observed. Timeouts of other sections stay.

    If the current timeouts were computed, too, they move only half of the way to the new ones.

    Args:
        selected: names of sections; None: all known sections.
        with_outside: also compute the timeout of the time without an open section.
    """
    names = list(selected) if selected is not None else list({*current.section, *observed.sections})
    if any(observed.sections.get(name, 0.0) <= 0 for name in names) or (with_outside and observed.outside <= 0):
        return None
    limits = dict(current.section)
    for name in names:
        limits[name] = _moved(
            current.section.get(name), factor * observed.sections[name], name in current.calculated_sections
        )
    outside = current.out_of_section
    if with_outside:
        outside = _moved(outside, factor * observed.outside, current.is_out_of_section_calculated)
    return SectionTimeouts(
        section=limits,
        out_of_section=outside,
        calculated_sections={*current.calculated_sections, *names},
        is_out_of_section_calculated=current.is_out_of_section_calculated or with_outside,
    )


def _moved(old: float | None, new: float, was_calculated: bool) -> float:
    return max(LEAST_TIMEOUT, new if old is None or not was_calculated else (old + new) / 2)
