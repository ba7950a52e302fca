"""How far the ranks of one run have come in their groups. Kept as columns, because all are compared each second."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Standings(NamedTuple):
    """The ranks of one group, and how many collectives each has enqueued and completed."""

    ranks: Numbers
    enqueued: Numbers
    completed: Numbers


class ByGroup:
    """A copy of the columns, by group.

    Args:
        numbers: a number for each group id.
        order: indices of the columns, sorted by the groups' numbers. starts: where each group begins in ``order``.
        columns: ranks, enqueued, completed.
    """

    def __init__(
        self, numbers: Mapping[str, int], order: Numbers, starts: Numbers, columns: Sequence[array[int]]
    ) -> None:
        self._numbers = dict(numbers)
        self._order, self._starts = order, starts
        self._ranks, self._enqueued, self._completed = (np.array(column) for column in columns)

    def spans(self) -> dict[str, tuple[int, int]]:
        """By group, the lowest and the highest number of collectives that its ranks have enqueued."""
        low, high = self._spans()
        return dict(zip(self._numbers, zip(low.tolist(), high.tolist(), strict=True), strict=True))

    def lag(self) -> int:
        """The most collectives by which the last rank of a group is behind the first."""
        low, high = self._spans()
        return int((high - low).max(initial=0))

    def of(self, group: str) -> Standings:
        """The known ranks of the group, in no order."""
        number = self._numbers.get(group)
        first, *rest = (0, 0) if number is None else self._starts[number : number + 2].tolist()
        places = self._order[first : rest[0] if rest else None]
        return Standings(self._ranks[places], self._enqueued[places], self._completed[places])

    def _spans(self) -> tuple[Numbers, Numbers]:
        if not self._numbers:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        enqueued = self._enqueued[self._order]
        return np.minimum.reduceat(enqueued, self._starts), np.maximum.reduceat(enqueued, self._starts)


class Levels:
    """The columns. Each pair of a rank and a group has a fixed index in them (`RankState.progress`).

    Attributes:
        enqueued, completed: number of collectives, by index.
    """

    __slots__ = ("_group", "_numbers", "_order", "_rank", "_starts", "completed", "enqueued")

    def __init__(self) -> None:
        self.enqueued, self.completed = array("q"), array("q")
        self._rank, self._group = array("q"), array("i")
        self._numbers: dict[str, int] = {}
        self._order = self._starts = np.zeros(0, np.int64)

    def add(self, rank: int, group: str) -> int:
        """Add a pair of a rank and a group; returns its index."""
        self._rank.append(rank)
        self._group.append(self._numbers.setdefault(group, len(self._numbers)))
        self.enqueued.append(0)
        self.completed.append(0)
        return len(self._rank) - 1

    def by_group(self) -> ByGroup:
        """Copy the columns as they are now."""
        if len(self._order) < len(self._group):
            group = np.array(self._group)
            self._order = np.argsort(group, kind="stable")
            self._starts = np.flatnonzero(np.diff(group[self._order], prepend=-1))
        return ByGroup(self._numbers, self._order, self._starts, (self._rank, self.enqueued, self.completed))
