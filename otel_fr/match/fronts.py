"""Sets of instances that are blocked together, and which of them blocks the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from otel_fr.match.instances import InstanceKey
from otel_fr.match.nodes import Node

Front = tuple[InstanceKey, list[InstanceKey]]
"""An instance, and those that it blocks."""


def fronts(nodes: Mapping[InstanceKey, Node]) -> list[Front]:
    """Connected sets of blocked instances, each as (the one that blocks the others, the others).

    That is one that all ranks that wait in it reached first, or else the one that most ranks reached first. Two
    instances are connected if a rank, or a chain of ranks and instances, waits in both.
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
