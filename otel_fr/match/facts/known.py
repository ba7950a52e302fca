"""The facts of one judgement: evidence without misleading parts, calls matched to instances, state of calls, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from otel_fr.match.facts.aftermath import first_mismatches
from otel_fr.match.facts.calls import LastCall, last_calls, sharing
from otel_fr.match.facts.instances import Completions, Instance, InstanceKey, has_joined, line_up
from otel_fr.match.facts.machines import Machines, lost
from otel_fr.match.facts.mismatch import Mismatch
from otel_fr.match.facts.ranks import is_starved, worst_of
from otel_fr.match.facts.recording import without_misleading
from otel_fr.match.facts.stacks import DeviceSyncs
from otel_fr.match.model import Call, Evidence, Overdue


@dataclass
class Facts:
    """The facts of one judgement. They do not change after their construction.

    Attributes:
        evidence: the evidence without its misleading parts (`recording`).
        mismatches: calls that do not fit together, where that is a fault of its own.
    """

    evidence: Evidence
    instances: dict[InstanceKey, Instance] = field(init=False)
    mismatches: list[Mismatch] = field(init=False)
    completions: Completions = field(init=False)

    def __post_init__(self) -> None:
        self.evidence = without_misleading(self.evidence)
        self.instances = line_up(self.evidence)
        self.mismatches = first_mismatches(self.evidence, self.instances)
        self.completions = Completions(self.evidence)

    def has_joined(self, instance: Instance, rank: int) -> bool | None:
        """Whether a rank has enqueued its call; None: the evidence does not show it."""
        return has_joined(instance, rank, self.evidence.ranks.get(rank))

    @cached_property
    def by_rank(self) -> Mapping[int, list[Call]]:
        """Each rank's calls."""
        found: dict[int, list[Call]] = {}
        for call in self.evidence.calls:
            found.setdefault(call.rank, []).append(call)
        return found

    @cached_property
    def lasts(self) -> Mapping[int, LastCall]:
        """Each rank's newest call."""
        return last_calls(self.evidence.calls, self.evidence.window)

    @cached_property
    def syncs(self) -> DeviceSyncs:
        """Which ranks' threads wait for their devices."""
        return DeviceSyncs(self.evidence)

    @cached_property
    def threads(self) -> Mapping[str, Mapping[tuple[str, ...], list[int]]]:
        """Group id -> names of threads -> ranks whose threads are in calls of the group at the same time."""
        return sharing(self.evidence.calls)

    @cached_property
    def overdue(self) -> Mapping[int, Overdue]:
        """For each overdue rank, the overdue activity that says most."""
        found = {rank: worst_of(info) for rank, info in self.evidence.ranks.items()}
        return {rank: item for rank, item in found.items() if item is not None}

    @cached_property
    def starved(self) -> frozenset[int]:
        """The ranks whose host gives them no processor."""
        return frozenset(r for r, info in self.evidence.ranks.items() if is_starved(info, self.evidence.window))

    @cached_property
    def lost(self) -> Mapping[int, str]:
        """The ranks of lost machines, each with its machine."""
        return lost(self.evidence)

    def with_lost(self, ranks: Sequence[int]) -> Sequence[int]:
        """If all these ranks are on lost machines, add the machines' other ranks: a lost machine is one fault."""
        if not ranks or not self.lost.keys() >= set(ranks):
            return ranks
        machines = {self.lost[rank] for rank in ranks}
        return [rank for rank, machine in sorted(self.lost.items()) if machine in machines]

    @cached_property
    def machines(self) -> Machines:
        """On which machines the ranks run."""
        return Machines({rank: info.place for rank, info in self.evidence.ranks.items()})
