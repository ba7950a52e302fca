"""Total size of all runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from otel_fr_collector.jobs.calls import MAX_CACHED, MEMBER_BYTES, UNIT

MAX_KEPT = 144 << 20
"""Bytes that all runs may take by default (see `--job-memory`), counted by the sizes below and by `UNIT`."""
JOB_MEMORY = MAX_KEPT + MAX_CACHED
"""Default of ``--job-memory``: bytes of all runs and all caches."""
RANK_BYTES, GROUP_BYTES, PROGRESS_BYTES = 700, 1_000, 600
"""Bytes of a rank without its report, of a group without members and calls, and of a rank's progress in a group with
its newest call. Measured with tracemalloc."""
TALLY_BYTES = 300
"""Bytes of a rank's totals in a group (`jobs.tallies`), measured likewise."""
POINT_BYTES, SERIES_BYTES = 350, 4_000
"""Bytes of a rank's latest point of a series, and of a series (`jobs.numbers`), measured likewise."""
MIN_CALLS, MIN_REPORTED = 60_000, 60_000
"""Units that are always left for calls of incomplete instances, and for reports."""


def size_of(ranks: int, groups: int, members: int, progress_entries: int) -> int:
    """Bytes that so many take together. ``members``: total length of the member lists."""
    return ranks * RANK_BYTES + groups * GROUP_BYTES + members * MEMBER_BYTES + progress_entries * PROGRESS_BYTES


@dataclass(slots=True)
class Usage:
    """Total size of all runs, and how often something was refused or evicted, by kind.

    Attributes:
        most: limit in bytes.
        watched: groups whose waits are kept (`jobs.waits`).
        timed: calls with times on devices, of collectives that lack some members' calls (`jobs.waits`).
        tallies: pairs of a rank and a group whose totals are kept (`jobs.tallies`).
        points, series: latest points of ranks, and series of runs (`jobs.numbers`).
        is_full: a run smaller than its share was refused room since room was last made.
    """

    most: int = MAX_KEPT
    runs: int = 0
    ranks: int = 0
    groups: int = 0
    members: int = 0
    progress_entries: int = 0
    reported: int = 0
    watched: int = 0
    timed: int = 0
    tallies: int = 0
    points: int = 0
    series: int = 0
    is_full: bool = False
    refused: Counter[str] = field(default_factory=Counter)
    evicted: Counter[str] = field(default_factory=Counter)

    @property
    def fixed(self) -> int:
        """Bytes of everything that is kept as long as its run."""
        return (
            size_of(self.ranks, self.groups, self.members, self.progress_entries)
            + self.timed * UNIT
            + self.tallies * TALLY_BYTES
            + self.points * POINT_BYTES
            + self.series * SERIES_BYTES
        )

    def has_room(self, size: int, of_run: int = 0) -> bool:
        """Whether ``size`` more bytes can be kept as long as their run.

        Args:
            of_run: bytes that the run has. If it has more than half of the limit, an eighth is left to other runs.
        """
        left = self.most // 8 if 2 * of_run > self.most else 0
        return self.fixed + size <= self.most - (MIN_CALLS + MIN_REPORTED) * UNIT - left

    def room_for_reports(self, most: int) -> int:
        """Units that all reports together may have, at most ``most``."""
        return min(most, max(MIN_REPORTED, (self.most - self.fixed) // UNIT - MIN_CALLS))

    def room_for_calls(self, most: int) -> int:
        """Units that the calls of all incomplete instances together may have, at most ``most``."""
        return min(most, max(MIN_CALLS, (self.most - self.fixed) // UNIT - self.reported))

    def refuse(self, kind: str, held: int, limit: int, of_run: int) -> None:
        """Count a refusal: the run has ``held`` of a kind, and all runs together may have ``limit`` of it."""
        self.refused[kind] += 1
        if held * self.runs < limit and of_run * self.runs < self.most:
            self.is_full = True
