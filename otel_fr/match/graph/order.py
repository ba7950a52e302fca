"""In which order a job's calls came to be: by each rank's own order, and across ranks by the collectives they share.

One call comes before another if a rank made it first, or if a collective lies between them that a rank made after the
one and another rank before the other. Where neither comes first, their names decide. No clocks are used.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from otel_fr.match.facts.instances import Instance, InstanceKey


def positions(instances: Mapping[InstanceKey, Instance], wanted: Collection[InstanceKey]) -> dict[InstanceKey, int]:
    """A rising number for each of the wanted instances; linear in the calls up to the last of these.

    Ranks that are out of step may have made two collectives in opposite orders. Then the first is the one that a rank
    made after the fewest calls.
    """
    programs: dict[int, list[tuple[int, InstanceKey]]] = {}
    for key, instance in instances.items():
        for rank, calls in instance.calls.items():
            programs.setdefault(rank, []).append((calls[0].record, key))
    for program in programs.values():
        program.sort(key=lambda item: item[0])
    return _Walk(instances, programs).to(wanted)


class _Walk:
    """All ranks go through their programs, and each collective is passed by its callers together."""

    def __init__(
        self, instances: Mapping[InstanceKey, Instance], programs: Mapping[int, list[tuple[int, InstanceKey]]]
    ) -> None:
        self._instances, self._programs = instances, programs
        self._at = dict.fromkeys(programs, 0)
        self._here: dict[InstanceKey, int] = {}
        """How many ranks stand at an instance."""
        self._ready: list[tuple[str, InstanceKey]] = []
        """All its callers do: a heap by name."""
        self._passed: set[InstanceKey] = set()
        for rank in sorted(programs):
            self._arrive(rank)

    def to(self, wanted: Collection[InstanceKey]) -> dict[InstanceKey, int]:
        found: dict[InstanceKey, int] = {}
        number = 0
        while len(found) < len(wanted):
            key = heapq.heappop(self._ready)[1] if self._ready else self._nearest()
            if key in self._passed:
                continue
            self._passed.add(key)
            number += 1
            if key in wanted:
                found[key] = number
            for rank in self._instances[key].calls:
                at, program = self._at[rank], self._programs[rank]
                if at < len(program) and program[at][1] == key:
                    self._arrive(rank)
        return found

    def _arrive(self, rank: int) -> None:
        program, at = self._programs[rank], self._at[rank]
        while at < len(program) and program[at][1] in self._passed:
            at += 1
        self._at[rank] = at
        if at == len(program):
            return
        key = program[at][1]
        here = self._here[key] = self._here.get(key, 0) + 1
        if here == len(self._instances[key].calls):
            heapq.heappush(self._ready, (self._instances[key].name, key))

    def _nearest(self) -> InstanceKey:
        heads = [(record, key) for rank, at in self._at.items() for record, key in self._programs[rank][at : at + 1]]
        return min((record, self._instances[key].name, key) for record, key in heads)[2]
