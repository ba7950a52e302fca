"""Cycles of the wait-for graph, and the ranks that took their calls in another order than the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from otel_fr.match.instances import Instance, InstanceKey
from otel_fr.match.out_of_step import Steps
from otel_fr.match.waiting import Node


def cycles(nodes: Mapping[InstanceKey, Node]) -> list[list[InstanceKey]]:
    """The strongly connected components of the graph with more than one node (Tarjan, without recursion)."""
    index: dict[InstanceKey, int] = {}
    low: dict[InstanceKey, int] = {}
    position = {key: number for number, key in enumerate(nodes)}
    stack: list[InstanceKey] = []
    on_stack: set[InstanceKey] = set()
    found: list[list[InstanceKey]] = []
    for start in nodes:
        if start in index:
            continue
        work: list[tuple[InstanceKey, Iterator[InstanceKey]]] = [(start, iter(nodes[start].targets))]
        while work:
            key, targets = work[-1]
            if key not in index:
                index[key] = low[key] = len(index)
                stack.append(key)
                on_stack.add(key)
            target = next((target for target in targets if target in nodes), None)
            if target is not None:
                if target not in index:
                    work.append((target, iter(nodes[target].targets)))
                elif target in on_stack:
                    low[key] = min(low[key], index[target])
                continue
            work.pop()
            if work:
                below = work[-1][0]
                low[below] = min(low[below], low[key])
            if low[key] == index[key]:
                members: list[InstanceKey] = []
                while not members or members[-1] != key:
                    members.append(stack.pop())
                    on_stack.discard(members[-1])
                if len(members) > 1:
                    found.append(sorted(members, key=position.__getitem__))
    return found


def against_the_order(
    nodes: Mapping[InstanceKey, Node], cycle: list[InstanceKey]
) -> tuple[tuple[int, ...], Instance, Instance] | None:
    """The minority of a cycle that takes its calls in another order than the other members.

    Returns:
        the ranks that went on to the second instance without the first, while more than twice as many that belong to
        both wait in the first; None: no two instances of the cycle show such a majority.
    """
    inside = set(cycle)
    for key in cycle:
        node = nodes[key]
        members = set(node.instance.members)
        for target in dict.fromkeys(node.targets):
            if target not in inside or node.behind == target:
                continue
            other = nodes[target]
            common = members.intersection(other.instance.members)
            gone = common.intersection(other.waiting) - set(node.instance.calls)
            if gone and 2 * len(gone) < len(common) and common - gone <= set(node.waiting):
                return tuple(sorted(gone)), node.instance, other.instance
    return None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Ranks of a cycle that are out of step, and a collective in which others wait for them.

    Attributes:
        key: the instance that they did not join. taken: the one in which they wait instead.
        swapped: the two collectives may as well be in the wrong order: the ranks are behind by one call, and both
            groups are used about equally often.
        or_else: ranks that are out of step if these are not; (): the evidence allows no such doubt.
    """

    ranks: tuple[int, ...]
    key: InstanceKey
    taken: Instance
    swapped: bool
    or_else: tuple[int, ...]


def left_out(nodes: Mapping[InstanceKey, Node], cycle: list[InstanceKey], steps: Steps) -> list[LeftOut]:
    """The ranks of a cycle that left out calls or made calls too many; empty: none is known to have."""
    inside = set(cycle)
    places: dict[int, list[tuple[InstanceKey, InstanceKey]]] = {}
    for key in cycle:
        for rank, targets in nodes[key].next.items():
            for target in targets:
                if len(key) == len(target) == 3 and target in inside and nodes[target].behind is None:
                    places.setdefault(rank, []).append((key, target))
    or_else: tuple[int, ...] = ()
    culprits = steps.culprits & places.keys()
    if not culprits:
        culprits, or_else = _ahead_in_the_larger(nodes, places, steps)
    found: dict[tuple[InstanceKey, InstanceKey], list[int]] = {}
    for rank in sorted(culprits):
        found.setdefault(min(places[rank], key=lambda place: _rank_of_place(nodes, place)), []).append(rank)
    return [
        LeftOut(
            tuple(ranks),
            key,
            nodes[taken].instance,
            _may_be_swapped(nodes[key].instance, nodes[taken].instance)
            and all(steps.behind(rank) <= 1 for rank in ranks),
            or_else,
        )
        for (key, taken), ranks in found.items()
    ]


def _rank_of_place(nodes: Mapping[InstanceKey, Node], place: tuple[InstanceKey, InstanceKey]) -> tuple[object, ...]:
    """Sort key: the collective in which the smallest group waits shows a culprit best."""
    return len(nodes[place[0]].instance.members), nodes[place[0]].instance.name, nodes[place[1]].instance.name


def _ahead_in_the_larger(
    nodes: Mapping[InstanceKey, Node],
    places: Mapping[int, list[tuple[InstanceKey, InstanceKey]]],
    steps: Steps,
) -> tuple[frozenset[int], tuple[int, ...]]:
    """The ranks that wait in a larger group, which most have not reached, and are missing in their own part of it.

    Returns:
        these ranks, and those that are out of step otherwise; both empty if these do not explain every conflict.
    """
    conflicts = steps.shared + steps.alike
    ahead: set[int] = set()
    for rank, of in places.items():
        for key, target in of:
            own, larger = nodes[key].instance, nodes[target].instance
            contains = set(larger.members) > set(own.members)
            if contains and 2 * len(larger.calls) <= len(larger.members) and not _may_be_swapped(own, larger):
                ahead.add(rank)
    if not conflicts or not all(ahead.issuperset(c.ours) or ahead.issuperset(c.theirs) for c in conflicts):
        return frozenset(), ()
    involved = {rank for conflict in conflicts for side in conflict for rank in side}
    return frozenset(ahead & involved), tuple(sorted(involved - ahead))


def _may_be_swapped(first: Instance, second: Instance) -> bool:
    """True if the groups of two collectives are used about equally often, as where their calls alternate."""
    fewer, more = sorted((first.sequence_id, second.sequence_id))
    return 2 * fewer > more


def inverted(nodes: list[Node]) -> tuple[Instance, Instance, int, int] | None:
    """Two collectives that all joined and two ranks enqueued in opposite orders: (first, second, rank, other rank).

    Devices that execute a rank's calls in order then wait for each other. Only neighbours in a rank's order are
    compared, which finds an inversion if there is one.
    """
    order: dict[int, list[Instance]] = {}
    for node in nodes:
        for rank in node.instance.calls:
            order.setdefault(rank, []).append(node.instance)
    for rank in sorted(order):
        mine = sorted(order[rank], key=lambda instance: instance.call(rank).record)
        for first, second in pairwise(mine):
            for other in sorted(set(first.calls).intersection(second.calls)):
                if first.call(other).record > second.call(other).record:
                    return first, second, rank, other
    return None
