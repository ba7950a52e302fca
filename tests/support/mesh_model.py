"""Hybrid-parallel jobs on a mesh, with known truth: some ranks make a step too few or too many."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from otel_fr.match import CallState, Evidence, Group, Signature
from tests.support.device_model import Machine, Op
from tests.support.evidence import world


@dataclass(frozen=True)
class Mesh:
    """``everyone``, and each item of ``axes`` (one for each dimension, the last is innermost): rank -> its group."""

    everyone: dict[int, Group]
    axes: tuple[dict[int, Group], ...]


def mesh(shape: tuple[int, ...], *, described: bool = True) -> Mesh:
    """Make the groups of a mesh: the default group, and the groups of each dimension."""
    names = ("pp", "dp", "tp")[-len(shape) :]
    size = math.prod(shape)
    axes = []
    for axis, name in enumerate(names):
        stride = math.prod(shape[axis + 1 :])
        groups: dict[int, Group] = {}
        for rank in range(size):
            if rank not in groups:
                ranks = tuple(rank + stride * position for position in range(shape[axis]))
                group = Group(f"{name}{rank}", f"{name}{rank}", name if described else "undefined", ranks)
                groups.update(dict.fromkeys(ranks, group))
        axes.append(groups)
    return Mesh(dict.fromkeys(range(size), world(size)), tuple(axes))


Step = tuple[dict[int, Group], Signature]
"""One call of each rank: (rank -> the group in which it makes the call, signature)."""


@dataclass(frozen=True)
class Program:
    """The calls of each rank: ``step``, repeated ``steps`` times, then ``end``."""

    step: tuple[Step, ...]
    steps: int
    end: tuple[Step, ...] = ()

    def calls(self, rank: int, more: int = 0) -> list[Op]:
        """Return a rank's calls. ``more``: extra steps."""
        return [Op(groups[rank], what) for groups, what in (*self.step * (self.steps + more), *self.end)]


def run(rng: random.Random, of: Mesh, program: Program, more: Mapping[int, int]) -> Machine:
    """Run the job until nothing moves. ``more``: rank -> extra steps."""
    machine = Machine({rank: program.calls(rank, more.get(rank, 0)) for rank in of.everyone})
    machine.run(rng)
    return machine


def as_the_collector_sees_it(evidence: Evidence) -> Evidence:
    """Return the evidence without calls that completed on all ranks, except each rank's last call.

    The collector does not keep these calls.
    """
    last: dict[int, int] = {}
    for call in evidence.calls:
        last[call.rank] = max(last.get(call.rank, 0), call.record)
    kept = [c for c in evidence.calls if c.state is not CallState.COMPLETED or last[c.rank] == c.record]
    return dataclasses.replace(evidence, calls=kept)
