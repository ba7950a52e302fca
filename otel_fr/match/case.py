"""The basis of one judgement: facts about calls and ranks, and the wait-for graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from otel_fr.match.facts.instances import InstanceKey
from otel_fr.match.facts.known import Facts
from otel_fr.match.graph.aborted import separate
from otel_fr.match.graph.device import OpenCalls, open_calls
from otel_fr.match.graph.nodes import Node, sources
from otel_fr.match.graph.steps import Steps, compare_steps


@dataclass
class Case(Facts):
    """Facts, and the wait-for graph. A case does not change after its construction.

    Attributes:
        deaths: ranks whose ending is a cause.
        aborted: ranks that were aborted because they waited.
        nodes: the wait-for graph.
    """

    deaths: frozenset[int] = field(init=False)
    aborted: frozenset[int] = field(init=False)
    nodes: dict[InstanceKey, Node] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.deaths, self.aborted, self.nodes = separate(self)
        for node in self.nodes.values():
            if node.silent and node.culprits == node.silent:
                # More is known about ranks that fell silent than about ranks that were never heard.
                node.silent = [rank for rank in node.silent if rank not in self.unheard] or node.silent

    @cached_property
    def steps(self) -> Steps:
        """Which ranks cannot have run the same program."""
        return compare_steps(self, [node.instance for node in self.nodes.values() if node.behind is None])

    @cached_property
    def unheard(self) -> frozenset[int]:
        """Ranks without evidence that belong to the run, or for which other ranks wait."""
        ranks = self.evidence.ranks
        awaited = {rank for node in self.nodes.values() for rank in node.silent}
        return frozenset(
            r for r in awaited.union(ranks) if r not in ranks or (ranks[r].is_unheard and not ranks[r].has_gaps)
        )

    @cached_property
    def open_calls(self) -> dict[int, OpenCalls]:
        """For each rank, its calls that have been in flight for longer than the window."""
        return open_calls(self)

    @cached_property
    def sources(self) -> Mapping[InstanceKey, list[InstanceKey]]:
        """For each node, the nodes that wait for it."""
        return sources(self.nodes)

    @cached_property
    def messages(self) -> Mapping[int, list[InstanceKey]]:
        """For each rank, the messages that it has called and in which a rank waits."""
        found: dict[int, list[InstanceKey]] = {}
        for key, node in self.nodes.items():
            for rank in node.instance.calls if node.instance.p2p else ():
                found.setdefault(rank, []).append(key)
        return found
