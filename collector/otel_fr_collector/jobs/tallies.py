"""How long the ranks of a group were waited for, and how long they waited: totals that only grow.

Every measured wait counts, whether or not a rank is named for it (`jobs.waits`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from otel_fr_collector.jobs.usage import TALLY_BYTES, Usage

MAX_TALLIES = 65_536
"""Pairs of a rank and a group whose totals are kept, over all runs."""
MAX_PAST = 4_096
"""Pairs that are kept from the dropped runs of one job while the job continues."""


@dataclass(slots=True)
class RankTally:
    """Totals of one rank in one group.

    Attributes:
        waited_for: seconds that half of the group waited for the rank while it was the last one.
        came_last: number of collectives in which it was the last. waited: seconds that it waited for the last rank.
    """

    waited_for: float = 0.0
    came_last: int = 0
    waited: float = 0.0

    def add(self, other: RankTally) -> None:
        self.waited_for += other.waited_for
        self.came_last += other.came_last
        self.waited += other.waited


class Tallies:
    """The tallies of one group, by rank, bounded."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._by_rank: dict[int, RankTally] = {}

    def of(self, rank: int) -> RankTally | None:
        """The rank's tally, created if missing; None: there is no room for another."""
        found = self._by_rank.get(rank)
        if found is None:
            usage = self._usage
            if usage.tallies >= MAX_TALLIES or not usage.has_room(TALLY_BYTES):
                usage.refused["waits"] += 1
                return None
            usage.tallies += 1
            found = self._by_rank[rank] = RankTally()
        return found

    def items(self) -> Iterable[tuple[int, RankTally]]:
        return self._by_rank.items()

    def largest(self, count: int) -> list[tuple[int, RankTally]]:
        """The ranks that were waited for most."""
        return heapq.nlargest(count, self._by_rank.items(), key=lambda item: item[1].waited_for)

    def release(self) -> None:
        """Free the room of the group, which is dropped."""
        self._usage.tallies -= len(self._by_rank)
        self._by_rank.clear()


class PastTallies:
    """Tallies of the dropped runs of jobs that continue, so that no total falls while its job is known."""

    def __init__(self) -> None:
        self._by_job: dict[str, dict[tuple[str, int], RankTally]] = {}

    def add(self, job: str, group: str, tallies: Tallies) -> None:
        """Keep the tallies of a run of the job, as far as there is room. ``group``: the group's label."""
        own = self._by_job.setdefault(job, {})
        for rank, tally in tallies.items():
            known = own.get((group, rank))
            if known is None and len(own) < MAX_PAST:
                known = own[group, rank] = RankTally()
            if known is not None:
                known.add(tally)

    def items(self) -> Iterator[tuple[str, str, int, RankTally]]:
        """Job, group, rank, tally."""
        for job, own in self._by_job.items():
            for (group, rank), tally in own.items():
                yield job, group, rank, tally

    def forget(self, job: str) -> None:
        """Forget a job whose last run is dropped."""
        self._by_job.pop(job, None)
