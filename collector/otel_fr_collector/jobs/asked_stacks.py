"""Collects the stacks that a user has requested of all ranks of a run, and merges equal ones as they arrive."""

from __future__ import annotations

from otel_fr.match.facts.stacks import group_stacks
from otel_fr.match.finding import StackGroup
from otel_fr_collector.jobs.run import RunId

MAX_PLACES = 256
"""Different stacks kept for one request. A rank with another one only counts as having answered."""


MAX_ASKED = 8
"""Requests whose answers are kept. Each takes up to 256 stacks of 14 kB."""


class AskedStacks:
    """The answers to one request.

    Args:
        wall: Unix time of the request.

    Attributes:
        answered: ranks that have sent their stacks.
    """

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.answered: set[int] = set()
        self._places: dict[tuple[str, ...], list[int]] = {}

    def add(self, rank: int, stack: str) -> None:
        """Take a rank's stacks, in the form of the rank report. Only the rank's first answer counts."""
        if rank in self.answered:
            return
        self.answered.add(rank)
        for group in group_stacks([(rank, stack)]):
            if group.frames in self._places or len(self._places) < MAX_PLACES:
                self._places.setdefault(group.frames, []).append(rank)

    def groups(self) -> list[StackGroup]:
        """The ranks with each stack, most ranks first."""
        found = [StackGroup(tuple(sorted(ranks)), frames) for frames, ranks in self._places.items()]
        return sorted(found, key=lambda group: (-len(group.ranks), group.ranks))


class StackRequests:
    """The latest request for each run, with the answers. The last `MAX_ASKED` requests are kept."""

    def __init__(self) -> None:
        self._by_run: dict[RunId, AskedStacks] = {}

    def ask(self, run: RunId, wall: float) -> None:
        """Note that all ranks of the run are asked now. ``wall``: Unix time."""
        self._by_run.pop(run, None)
        self._by_run[run] = AskedStacks(wall)
        while len(self._by_run) > MAX_ASKED:
            del self._by_run[next(iter(self._by_run))]

    def of(self, run: RunId) -> AskedStacks | None:
        """The latest request about the run; None: none is kept."""
        return self._by_run.get(run)

    def add(self, run: RunId, rank: int, stack: str) -> None:
        """Take a rank's stacks, if its run has a request."""
        if run in self._by_run:
            self._by_run[run].add(rank, stack)
