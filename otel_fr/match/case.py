"""The evidence of one judgement lined up: facts about calls and ranks, and the wait-for graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from otel_fr.match.facts.aftermath import first_mismatches
from otel_fr.match.facts.calls import LastCall, last_calls, sharing
from otel_fr.match.facts.instances import Completions, Instance, InstanceKey, line_up
from otel_fr.match.facts.machines import Machines, lost
from otel_fr.match.facts.mismatch import Mismatch
from otel_fr.match.facts.ranks import is_starved, worst_of
from otel_fr.match.facts.recording import (
    mark_caught,
    mark_timed_out,
    not_blocked_by_host,
    not_failed_by_abort,
    set_aside,
    without_gaps,
    without_run_on,
)
from otel_fr.match.facts.stacks import DeviceSyncs
from otel_fr.match.graph.aborted import separate
from otel_fr.match.graph.device import OpenCalls, open_calls
from otel_fr.match.graph.nodes import Node
from otel_fr.match.graph.steps import Steps, compare_steps
from otel_fr.match.model import Evidence, Overdue


@dataclass
class Case:
    """The evidence lined up. Nothing changes it after its construction.

    Attributes:
        deaths: ranks whose ending is a cause.
        aborted: ranks that were aborted because they waited.
        nodes: the wait-for graph. lasts: rank -> its newest call.
    """

    evidence: Evidence
    instances: dict[InstanceKey, Instance] = field(init=False)
    mismatches: list[Mismatch] = field(init=False)
    deaths: frozenset[int] = field(init=False)
    aborted: frozenset[int] = field(init=False)
    completions: Completions = field(init=False)
    nodes: dict[InstanceKey, Node] = field(init=False)
    lasts: dict[int, LastCall] = field(init=False)

    def __post_init__(self) -> None:
        recorded = not_blocked_by_host(without_run_on(without_gaps(set_aside(self.evidence))))
        self.evidence = not_failed_by_abort(mark_caught(mark_timed_out(recorded)))
        self.instances = line_up(self.evidence)
        self.mismatches = first_mismatches(self.evidence, self.instances)
        self.completions = Completions(self.evidence)
        self.deaths, self.aborted, self.nodes = separate(
            self.evidence, self.instances, self.mismatches, self.completions
        )
        self.lasts = last_calls(self.evidence.calls, self.evidence.window)
        for node in self.nodes.values():
            if node.silent and node.culprits == node.silent:
                # Of a rank that fell silent more is known than of one that never was heard.
                node.silent = [rank for rank in node.silent if rank not in self.unheard] or node.silent

    @cached_property
    def steps(self) -> Steps:
        """Which ranks cannot have run the same program."""
        fronts = [node.instance for node in self.nodes.values() if node.behind is None]
        return compare_steps(self.evidence, fronts, self.lasts)

    @cached_property
    def unheard(self) -> frozenset[int]:
        """The ranks without evidence, although others wait for them or the run has them."""
        ranks = self.evidence.ranks
        awaited = {rank for node in self.nodes.values() for rank in node.silent}
        return frozenset(
            r for r in awaited.union(ranks) if r not in ranks or (ranks[r].is_unheard and not ranks[r].has_gaps)
        )

    @cached_property
    def syncs(self) -> DeviceSyncs:
        """Which ranks' threads wait for their devices."""
        return DeviceSyncs(self.evidence)

    @cached_property
    def open_calls(self) -> dict[int, OpenCalls]:
        """By rank, its calls that have been in flight for longer than the window."""
        return open_calls(self.evidence, self.instances, self.completions)

    @cached_property
    def messages(self) -> Mapping[int, list[InstanceKey]]:
        """By rank, the messages that it has called, and in which ranks wait."""
        found: dict[int, list[InstanceKey]] = {}
        for key, node in self.nodes.items():
            for rank in node.instance.calls if node.instance.p2p else ():
                found.setdefault(rank, []).append(key)
        return found

    @cached_property
    def threads(self) -> Mapping[str, Mapping[tuple[str, ...], list[int]]]:
        """By group id and names of threads, the ranks whose threads are in calls of the group at once."""
        return sharing(self.evidence.calls)

    @cached_property
    def overdue(self) -> Mapping[int, Overdue]:
        """The ranks with something that has lasted longer than it may, and what says most of it."""
        found = {rank: worst_of(info) for rank, info in self.evidence.ranks.items()}
        return {rank: item for rank, item in found.items() if item is not None}

    @cached_property
    def starved(self) -> frozenset[int]:
        """The ranks whose host gives them no processor."""
        return frozenset(r for r, info in self.evidence.ranks.items() if is_starved(info, self.evidence.window))

    @cached_property
    def lost(self) -> Mapping[int, str]:
        """The ranks of machines that are lost, and the machine of each."""
        return lost(self.evidence)

    def with_lost(self, ranks: Sequence[int]) -> Sequence[int]:
        """These ranks and, if their machines are all lost, the other ranks of these: the machine is the fault."""
        if not ranks or not self.lost.keys() >= set(ranks):
            return ranks
        machines = {self.lost[rank] for rank in ranks}
        return [rank for rank, machine in sorted(self.lost.items()) if machine in machines]

    @cached_property
    def machines(self) -> Machines:
        """On which machines the ranks run."""
        return Machines({rank: info.place for rank, info in self.evidence.ranks.items()})
