"""Where all ranks of a run are, because somebody wants to know: their stacks, merged as they arrive."""

from __future__ import annotations

from otel_fr.match.facts.stack_groups import group_stacks
from otel_fr.match.finding import StackGroup

MAX_PLACES = 256
"""Different places that are kept; the ranks of further ones are only counted as having answered."""


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
        """Take a rank's stacks, as the rank report has them; the first count."""
        if rank in self.answered:
            return
        self.answered.add(rank)
        for group in group_stacks([(rank, stack)]):
            if group.frames in self._places or len(self._places) < MAX_PLACES:
                self._places.setdefault(group.frames, []).append(rank)

    def groups(self) -> list[StackGroup]:
        """The ranks of each place, most ranks first."""
        found = [StackGroup(tuple(sorted(ranks)), frames) for frames, ranks in self._places.items()]
        return sorted(found, key=lambda group: (-len(group.ranks), group.ranks))
