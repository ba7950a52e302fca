"""Which of the calls that wait for the same culprit the program reaches first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.graph.nodes import Node
from otel_fr.match.graph.waiting import precedes
from otel_fr.match.model import Evidence

MAX_RIVALS = 64
"""Calls that wait for one culprit that are compared with each other: the time grows with the square."""


class Rivals:
    """The calls that wait for no other call, by culprit."""

    def __init__(self, evidence: Evidence, instances: Mapping[InstanceKey, Instance], nodes: Sequence[Node]) -> None:
        self._evidence = evidence
        self._instances = instances
        self._of_culprit: dict[int, list[Node]] = defaultdict(list)
        for node in nodes:
            for rank in () if node.targets else node.culprits:
                if len(self._of_culprit[rank]) < MAX_RIVALS:
                    self._of_culprit[rank].append(node)

    def before(self, node: Node) -> int:
        """How many of those with a culprit in common come before this one in the program; 0 if it waits for others."""
        if node.targets:
            return 0
        found = (n for rank in node.culprits for n in self._of_culprit.get(rank, ()) if n is not node)
        rivals = {n.instance.key: n for n in found}.values()
        return sum(precedes(self._evidence, self._instances, n, node) for n in rivals)
