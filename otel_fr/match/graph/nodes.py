"""The nodes of the wait-for graph: instances in which ranks wait, for whom they wait, and cycles of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.mismatch import Mismatch


@dataclass(slots=True)
class Node:
    """An instance in which ranks wait.

    Attributes:
        waiting: the ranks that wait in it, ascending.
        is_left: its calls failed, and all waiting ranks have continued. They waited for what the others did then.
        dead: members whose ending is a cause and blocks it.
        idle: members that have not joined and wait nowhere.
        not_begun: members that have joined, whose device has not begun it and waits in no other call.
        silent: members about which nothing is known.
        unrecorded: members whose calls are unknown: their recording has gaps or, for a creation, their recorder records
            none.
        next: member that has not joined, or whose device has not begun it -> the instances in which it waits instead.
        undecided: members that may still join or begin it (they made progress within the window).
        behind: an instance that must end first: of the same group, or enqueued earlier by a rank that waits in both.
        mismatch: the mismatch from which it follows.
    """

    instance: Instance
    waiting: tuple[int, ...]
    is_left: bool = False
    dead: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    not_begun: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    unrecorded: list[int] = field(default_factory=list)
    next: dict[int, list[InstanceKey]] = field(default_factory=dict)
    undecided: list[int] = field(default_factory=list)
    behind: InstanceKey | None = None
    mismatch: Mismatch | None = None

    @property
    def culprits(self) -> list[int]:
        """Members that block the instance and wait for no rank: dead before living, known before silent ones."""
        return self.dead or self.idle or self.not_begun or ([] if self.next else self.silent)

    @property
    def age(self) -> float | None:
        """Seconds that the longest waiting rank has waited, or had when it gave up; None: unknown."""
        return waited(self.instance, self.waiting)

    @property
    def is_blocked_by_device(self) -> bool:
        """True if only devices that have not begun the instance are known to block it."""
        return self.culprits is self.not_begun and bool(self.not_begun) and not self.undecided and self.behind is None

    @property
    def targets(self) -> list[InstanceKey]:
        """The instances this one waits for, in the order of the members that wait there."""
        ahead = [key for rank in sorted(self.next) for key in self.next[rank]]
        return [*([self.behind] if self.behind else []), *ahead]


def waited(instance: Instance, ranks: Iterable[int]) -> float | None:
    """Return the longest time that these ranks have waited in the instance, or had when they gave up; None: unknown."""
    times = [instance.call(rank).lasted for rank in ranks if rank in instance.calls]
    return max((seconds for seconds in times if seconds is not None), default=None)


def sources(nodes: Mapping[InstanceKey, Node]) -> dict[InstanceKey, list[InstanceKey]]:
    """Return, for each node, the nodes that wait for it."""
    found: dict[InstanceKey, list[InstanceKey]] = {}
    for key, node in nodes.items():
        for target in node.targets:
            found.setdefault(target, []).append(key)
    return found


def cycles(nodes: Mapping[InstanceKey, Node]) -> list[list[InstanceKey]]:
    """Return the strongly connected components of the graph with more than one node (Tarjan, without recursion)."""
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


def inverted(nodes: list[Node]) -> tuple[Instance, Instance, int, int] | None:
    """Find two collectives that all joined, and that two ranks enqueued in opposite orders.

    Devices that execute a rank's calls in order then wait for each other. Only neighbours in a rank's order are
    compared, which finds an inversion if there is one.

    Returns:
        (first, second, rank, other rank), or None.
    """
    order: dict[int, list[Instance]] = {}
    for node in nodes:
        for rank in node.instance.calls:
            order.setdefault(rank, []).append(node.instance)
    compared: set[tuple[InstanceKey, InstanceKey]] = set()
    for rank in sorted(order):
        mine = sorted(order[rank], key=lambda instance: instance.call(rank).record)
        for first, second in pairwise(mine):
            if (first.key, second.key) in compared:
                continue  # another rank enqueued them in this order, and none in the other one
            compared.add((first.key, second.key))
            for other in sorted(set(first.calls).intersection(second.calls)):
                if first.call(other).record > second.call(other).record:
                    return first, second, rank, other
    return None


Front = tuple[InstanceKey, list[InstanceKey]]
"""An instance, and the instances that it blocks."""


def fronts(nodes: Mapping[InstanceKey, Node]) -> list[Front]:
    """Return connected sets of blocked instances, each as (the one that blocks the others, the others).

    The blocking one is an instance that all its waiting ranks reached first, or else the one that most ranks reached
    first. Two instances are connected if a rank, or a chain of ranks and instances, waits in both.
    """
    order: dict[int, list[InstanceKey]] = {}
    for key, node in nodes.items():
        for rank in node.waiting:
            order.setdefault(rank, []).append(key)
    firsts = Counter(min(keys, key=lambda k: nodes[k].instance.call(rank).record) for rank, keys in order.items())
    found: list[Front] = []
    position = {key: number for number, key in enumerate(nodes)}
    left = dict.fromkeys(nodes)
    while left:
        together, todo = dict[InstanceKey, None](), [next(iter(left))]
        while todo:
            key = todo.pop()
            if key in left:
                del left[key]
                together[key] = None
                todo.extend(k for rank in nodes[key].waiting for k in order.pop(rank, []))
        keys = sorted(together, key=position.__getitem__)
        front = max(keys, key=lambda k: (firsts[k] == len(nodes[k].waiting), firsts[k]))
        found.append((front, [key for key in keys if key != front]))
    return found
