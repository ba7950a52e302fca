"""Ranks that are out of step (`otel_fr.match.graph.steps`), where others wait for them or they wait for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.graph.nodes import Node
from otel_fr.match.graph.steps import Steps


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
            if rank in nodes[key].instance.calls:
                continue  # It has joined it; its device has not begun it.
            for target in targets:
                if len(key) == len(target) == 3 and target in inside:
                    places.setdefault(rank, []).append((key, target))
    or_else: tuple[int, ...] = ()
    culprits = steps.culprits & places.keys()
    if not culprits:
        culprits, or_else = _ahead_in_the_larger(nodes, places, steps)
    found: dict[tuple[InstanceKey, InstanceKey], list[int]] = {}
    for rank in sorted(culprits):
        found.setdefault(min(places[rank], key=lambda place: _most_telling(nodes, place)), []).append(rank)
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


def _most_telling(nodes: Mapping[InstanceKey, Node], place: tuple[InstanceKey, InstanceKey]) -> tuple[object, ...]:
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
