"""Ranks that cannot have run the same program, found from how many calls of several axes each has made.

An axis is a group, all groups of one kind, or the messages between two ranks. If two ranks run one program, neither has
made more calls of one axis and fewer of another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

MAX_CLASSES = 64
"""Different counts of the ranks of two axes that are compared in pairs. With more, the ranks do not run alike."""

Axis = Mapping[int, int]
"""Rank -> how many calls it has enqueued of one group, or of its only group of one kind."""


class Conflict(NamedTuple):
    """Two sets of ranks that cannot have run the same program; each rank of one conflicts with each of the other."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]


Stands = Mapping[tuple[str, int], Mapping[int, Mapping[str, int]]]
"""(axis, number of a call in it) -> rank that joined it -> axis -> how many calls of it the rank had made before."""


def between_ends(
    pairs: Mapping[str, Axis], axes: Mapping[str, Axis], stands: Stands, ended: set[int]
) -> list[Conflict]:
    """Find conflicts between the two ends of messages (``pairs``)."""
    ranks = {rank for axis in pairs.values() for rank in axis}
    near = {name: {r: count for r, count in axis.items() if r in ranks} for name, axis in axes.items()}
    return find_conflicts({**near, **pairs}, stands, ended, pairs) if pairs else []


def find_conflicts(
    axes: Mapping[str, Axis], stands: Stands, ended: set[int], only: Container[str] | None = None
) -> list[Conflict]:
    """Find conflicts between the ranks of any two axes, and with ranks that ended before others' calls.

    Args:
        only: each conflict must show in one of these axes; None: in any.
    """
    of_rank: dict[int, list[str]] = defaultdict(list)
    for name in sorted(axes):
        for rank in axes[name]:
            of_rank[rank].append(name)
    found: list[Conflict] = []
    for (name, number), before in stands.items():
        if len(axes.get(name, ())) < 2:  # nobody to compare with
            continue
        others: dict[str, list[int]] = defaultdict(list)
        for rank in axes[name]:
            for other in of_rank[rank]:
                if other != name and (only is None or name in only or other in only):
                    others[other].append(rank)
        for other, ranks in others.items():
            joined = {rank: before[rank][other] for rank in ranks if other in before.get(rank, ())}
            found += _around(axes[name], number, axes[other], joined, ranks)
    for name, axis in axes.items():
        if only is None or name in only:
            found += _after_the_end(axis, ended)
    return found


def _around(axis: Axis, number: int, other: Axis, before: Mapping[int, int], ranks: list[int]) -> list[Conflict]:
    """Find ranks that made another number of calls of the other axis before call ``number`` of the first axis.

    Args:
        before: rank that joined the call -> calls of the other axis that it had made before.
        ranks: the ranks of both axes.
    """
    by_count: dict[int, list[int]] = defaultdict(list)
    for rank, count in before.items():
        by_count[count].append(rank)
    if len(by_count) > MAX_CLASSES:
        return []
    found = [Conflict(tuple(by_count[a]), tuple(by_count[b])) for a, b in combinations(sorted(by_count), 2)]
    rest = [rank for rank in ranks if rank not in before]
    for count, joined in by_count.items():
        wrong = [r for r in rest if (other[r] > count if axis[r] < number else other[r] < count)]
        if wrong:
            found.append(Conflict(tuple(joined), tuple(wrong)))
    return found


def _after_the_end(axis: Axis, ended: set[int]) -> list[Conflict]:
    """Find ranks that made more calls than ranks that ended without an error."""
    classes: dict[int, list[int]] = defaultdict(list)
    for rank, count in axis.items():
        if rank in ended:
            classes[count].append(rank)
    if not 0 < len(classes) <= MAX_CLASSES:
        return []
    found = []
    for count, finished in classes.items():
        beyond = tuple(rank for rank, other in axis.items() if other > count)
        if beyond:
            found.append(Conflict(tuple(finished), beyond))
    return found


def fewest(conflicts: Sequence[Conflict]) -> frozenset[int]:
    """Return ranks that together explain all conflicts, if fewer than half of the ranks in conflict do; else none.

    Ranks in conflict with the most others are taken first. Ranks with a part in the same conflicts are taken together,
    so that half of a large job against the other half costs no more than two ranks.
    """
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, conflict in enumerate(conflicts):
        for side, ranks in enumerate(conflict):
            for rank in ranks:
                parts[rank].append((index, side))
    alike: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for rank, own in sorted(parts.items()):
        alike[tuple(own)].append(rank)
    classes = list(alike.values())
    on_side: dict[tuple[int, int], set[int]] = defaultdict(set)
    for number, places in enumerate(alike):
        for index, side in places:
            on_side[index, side].add(number)
    opponents = {
        number: set[int]().union(*(on_side[index, 1 - side] for index, side in places))
        for number, places in enumerate(alike)
    }
    taken: list[int] = []
    while opponents:
        weights = {number: sum(len(classes[other]) for other in others) for number, others in opponents.items()}
        most = max(weights.values())
        top = {number for number, weight in weights.items() if weight == most}
        taken += [rank for number in top for rank in classes[number]]
        if 2 * len(taken) >= len(parts):
            return frozenset()
        opponents = {n: left for n, others in opponents.items() if n not in top and (left := others - top)}
    return frozenset(taken)
