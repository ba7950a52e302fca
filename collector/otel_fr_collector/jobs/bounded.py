"""Containers of bounded size for what clients send: caches by age, and sets of numbers as ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

GENERATIONS = 4
"""A budget has room for this many generations. A cache has two, so it takes at most half of the budget."""


class CacheBudget:
    """A limit that several caches share. Beyond it, the largest cache drops what has not been used lately.

    So a full cache does not empty the others, and no room is reserved for any of them.

    Args:
        limit: total weight of all caches, in bytes.

    Attributes:
        generation: weight at which a cache begins its next generation.
        used: total weight of all caches.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.generation = limit // GENERATIONS
        self.used = 0
        self._caches: list[Cache[Any, Any]] = []

    def join(self, cache: Cache[Any, Any]) -> None:
        self._caches.append(cache)

    def shrink(self) -> None:
        """Drop the largest caches' older generations until the limit is kept."""
        while self.used > self.limit:
            max(self._caches, key=lambda cache: cache.weight).age()


class Cache(Generic[K, V]):
    """A dict that drops entries not used lately. Entries in steady use stay, whatever else is added.

    It has two generations. When the younger is full, it replaces the older. A hit in the younger, the usual case, costs
    one dict look-up (`young` may be read directly).

    Args:
        budget: shared with other caches.
        weigh: returns the approximate bytes of a key and its value. Their size is up to the sender.
    """

    def __init__(self, budget: CacheBudget, weigh: Callable[[K, V], int]) -> None:
        self._budget = budget
        self._weigh = weigh
        self.young: dict[K, V] = {}
        self._old: dict[K, V] = {}
        self._young_weight = self._old_weight = 0
        budget.join(self)

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    @property
    def weight(self) -> int:
        return self._young_weight + self._old_weight

    def get(self, key: K) -> V | None:
        """The value, or None. A value found in the older generation moves to the younger."""
        value = self.young.get(key)
        if value is None:
            value = self._old.get(key)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> V:
        weight, budget = self._weigh(key, value), self._budget
        if self._young_weight + weight > budget.generation:
            self.age()
        self.young[key] = value
        self._young_weight += weight
        budget.used += weight
        if budget.used > budget.limit:
            budget.shrink()
        return value

    def age(self) -> None:
        """Drop the older generation, and make the younger the older."""
        gone = self._old_weight
        self._old, self._old_weight = dict(self.young), self._young_weight
        self.young.clear()  # not replaced: readers keep references to it
        self._young_weight = 0
        self._budget.used -= gone


class Ranges:
    """A set of integers, kept as at most ``limit`` rising ranges. Beyond the limit, the lowest gap counts as filled."""

    __slots__ = ("_ends", "_limit", "_starts")

    def __init__(self, limit: int = 32) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._limit = limit

    def __len__(self) -> int:
        """Number of ranges."""
        return len(self._starts)

    def __contains__(self, number: int) -> bool:
        if not self._ends or number > self._ends[-1]:  # the usual case
            return False
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number <= self._ends[index]

    def add(self, number: int) -> None:
        starts, ends = self._starts, self._ends
        if ends and number == ends[-1] + 1:
            ends[-1] = number
            return
        index = bisect_right(starts, number)
        if index and number <= ends[index - 1]:
            return
        joins_before = index > 0 and ends[index - 1] == number - 1
        joins_after = index < len(starts) and starts[index] == number + 1
        if joins_before and joins_after:
            ends[index - 1] = ends.pop(index)
            del starts[index]
        elif joins_before:
            ends[index - 1] = number
        elif joins_after:
            starts[index] = number
        else:
            starts.insert(index, number)
            ends.insert(index, number)
            if len(starts) > self._limit:
                del starts[1], ends[0]
