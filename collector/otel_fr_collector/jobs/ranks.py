"""What the collector knows of one rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_fr.match import Ending
from otel_fr_collector.jobs.calls import CompactCall
from otel_fr_collector.jobs.rank_reports import Report

SILENCE = 2.5
"""Seconds without a report after which a rank counts as silent: two reports and a half."""


@dataclass(slots=True)
class RankState:
    """One rank. ``arrived``: the collector's monotonic clock at its latest report; times in seconds."""

    rank: int
    report: Report | None = None
    arrived: float = 0.0
    ending: Ending = Ending.RUNNING
    ended: float | None = None
    host: str = ""
    stack: str = ""
    stack_arrived: float = 0.0
    site: str = ""
    python_blocked: bool = False
    exit_code: int | None = None
    signal: int | None = None
    exception: str = ""
    exception_site: str = ""
    file: str = ""
    progress: dict[str, list[int]] = field(default_factory=dict)
    """By group id: last number enqueued, last completed, from reports and spans alike."""
    latest: dict[str, CompactCall] = field(default_factory=dict)
    """By group id: the newest collective a span shows completed."""
    previous_record: int = -1
    previous_end: int = 0
    """Of the newest call that a span tells of: its record, and its end in Unix nanoseconds."""
    held: int = 0
    """What its report holds, see `MAX_REPORTED`."""

    def is_silent(self, now: float, floor: float = 0.0) -> bool:
        """No report for longer than `SILENCE` and no word of its end. ``floor``: silence counts from then at most."""
        return self.ended is None and now - max(self.arrived, floor) > SILENCE
