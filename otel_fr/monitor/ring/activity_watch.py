"""Follows the program's heartbeats, sections and steps in the ring: which are overdue, and which have ended."""

from __future__ import annotations

import os

from otel_fr.config import Config
from otel_fr.monitor.ring import activity
from otel_fr.monitor.ring.activity import Given, Watched
from otel_fr.rank_report import ReportedActivity
from otel_fr.ring import Activity, RingReader


class ActivityWatch:
    """Follows one rank's heartbeats, sections and steps.

    Attributes:
        sections: the open sections.
        step: the current step.
    """

    def __init__(self, reader: RingReader, config: Config) -> None:
        self._ring = reader
        self._reader = reader.activity
        self._given = Given(config.heartbeat_timeout, config.outside_timeout, config.section_timeouts)
        self._position = 0
        self._watched: list[Watched] = []
        self._known: set[tuple[str, int, int]] = set()
        self._kept: tuple[ReportedActivity, ...] = ()
        self.sections: list[Activity] = []
        self.step: Activity | None = None

    def poll(self, now_ns: int) -> list[Activity]:
        """Read the ring again. Return the sections and steps that have ended since the last call."""
        reader = self._reader
        if reader is None:
            return []
        ended, self._position, _ = reader.ended(self._position)
        self.sections = [section for section in reader.open_sections() if self._lives(section)]
        self.step = reader.step()
        self._watched = activity.watched(reader.beats(), self.sections, self._given, exiting=self._ring.is_exiting)
        return ended

    @property
    def current(self) -> list[Activity]:
        """The open sections, and the current step."""
        return [*self.sections, *([] if self.step is None else [self.step])]

    def _lives(self, section: Activity) -> bool:
        """Return True if the thread that began the section has not ended."""
        if not section.native_id or section.native_id == self._ring.pid:
            return True
        return os.path.exists(f"/proc/{self._ring.pid}/task/{section.native_id}") or not os.path.exists(
            f"/proc/{self._ring.pid}/task/{self._ring.pid}"
        )

    # ---- what is overdue

    def new_overdue(self, now_ns: int) -> list[Watched]:
        """Return the activities that have become overdue since the last call."""
        overdue = [item for item in self._watched if item.is_overdue(now_ns)]
        new = [item for item in overdue if item.identity not in self._known]
        self._known = {item.identity for item in overdue}
        return new

    def is_overdue(self, now_ns: int) -> bool:
        """Return True if some activity of the last `poll` is overdue."""
        return any(item.is_overdue(now_ns) for item in self._watched)

    def reported(self, now_ns: int) -> tuple[ReportedActivity, ...]:
        """Return the activities for the rank report."""
        return self._kept or activity.reported(self._watched, now_ns)

    def keep(self, now_ns: int) -> None:
        """Report the present overdue activities from now on. They are the reason for ending the rank, but its handlers
        may end sections meanwhile."""
        self._kept = tuple([item for item in activity.reported(self._watched, now_ns) if item.is_overdue])
