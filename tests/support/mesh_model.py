"""Hybrid-parallel jobs on a mesh of ranks. Some ranks make too few or too many calls: evidence with known truth."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from dataclasses import dataclass

from otel_fr.match import CallState, Evidence, Group, Signature
from tests.support.device_model import Machine, Op

SHAPES = ((2, 2), (2, 4), (4, 2), (2, 2, 2), (3, 3), (2, 8), (4, 4))
FAULTS = ("step short", "step long", "call left out", "call too many")


@dataclass(frozen=True)
class Mesh:
    """``axes``: one for each dimension, the last one innermost: rank -> its group."""

    world: int
    everyone: Group
    checkpoint: Group
    axes: tuple[dict[int, Group], ...]


def mesh(shape: tuple[int, ...], *, described: bool = True) -> Mesh:
    """The groups of a mesh: default group, one of all ranks for checkpoints, and those of each dimension."""
    names = ("pp", "dp", "tp")[-len(shape) :]
    world = math.prod(shape)
    everyone = Group("w", "0", "default_pg", tuple(range(world)))
    checkpoint = Group("c", "99", "checkpoint" if described else "undefined", everyone.ranks)
    axes = []
    for axis, name in enumerate(names):
        stride = math.prod(shape[axis + 1 :])
        groups: dict[int, Group] = {}
        for rank in range(world):
            if rank not in groups:
                ranks = tuple(rank + stride * position for position in range(shape[axis]))
                group = Group(f"{name}{rank}", f"{name}{rank}", name if described else "undefined", ranks)
                groups.update(dict.fromkeys(ranks, group))
        axes.append(groups)
    return Mesh(world, everyone, checkpoint, tuple(axes))


Step = tuple[dict[int, Group], str]
"""rank -> the group in which it calls this operation."""


@dataclass(frozen=True)
class Program:
    """What each rank does: ``begin``, then ``step`` some times, then ``end``."""

    begin: tuple[Step, ...]
    step: tuple[Step, ...]
    end: tuple[Step, ...]
    steps: int


def random_program(rng: random.Random, of: Mesh) -> Program:
    """Tensor and data parallel, sharded with replicas, or one kind only; then one of the usual ends of an epoch."""
    outer, inner = of.axes[-2:]
    everyone, checkpoint = (dict.fromkeys(range(of.world), group) for group in (of.everyone, of.checkpoint))
    step: list[Step] = rng.choice(
        [
            [(inner, "all_reduce")] * rng.randint(1, 3) + [(outer, "all_reduce")],
            [(inner, "all_gather_into_tensor"), (inner, "reduce_scatter_tensor"), (outer, "all_reduce")],
            [(inner, "all_reduce")],
        ]
    )
    end: list[Step] = rng.choice(
        [
            [(everyone, "barrier")],
            [(checkpoint, "all_gather_into_tensor")] * 2,
            [(everyone, "all_reduce"), (everyone, "barrier")],
            [(everyone, "barrier"), (inner, "all_reduce")],
        ]
    )
    begin: list[Step] = [(everyone, "barrier")] if rng.random() < 0.5 else []
    return Program(tuple(begin), tuple(step), tuple(end), rng.randint(3, 10))


def calls_of(program: Program, rank: int, fault: str | None, at: tuple[int, int]) -> list[Op]:
    """The rank's calls. ``at``: step, and call in it, of a call that is left out or made twice."""
    steps = program.steps + {"step short": -1, "step long": 1}.get(fault or "", 0)
    body: list[Step] = []
    for number, (index, made) in itertools.product(range(steps), enumerate(program.step)):
        times = {"call left out": 0, "call too many": 2}.get(fault or "", 1) if (number, index) == at else 1
        body += [made] * times
    return [_op(groups[rank], name) for groups, name in (*program.begin, *body, *program.end)]


def _op(group: Group, operation: str) -> Op:
    if operation == "barrier":
        return Op(group, Signature("barrier"))
    small, large = ((8,),), ((8 * len(group.ranks),),)
    shapes = {"all_gather_into_tensor": (small, large), "reduce_scatter_tensor": (large, small)}
    ins, outs = shapes.get(operation, (small, small))
    reduce_op = None if operation == "all_gather_into_tensor" else "sum"
    return Op(group, Signature(operation, ins, outs, ("Float",), ("Float",), reduce_op))


def run(
    rng: random.Random, of: Mesh, program: Program, faults: dict[int, str], at: tuple[int, int] = (0, 0), depth: int = 1
) -> Machine:
    """The job after nothing moves any more. ``depth``: calls that a rank may have in flight."""
    machine = Machine({rank: calls_of(program, rank, faults.get(rank), at) for rank in range(of.world)}, depth)
    assert machine.run(rng)
    return machine


def as_the_collector_sees_it(evidence: Evidence) -> Evidence:
    """Without the calls that completed on all ranks, except each rank's last one: the collector keeps no others."""
    last: dict[int, int] = {}
    for call in evidence.calls:
        last[call.rank] = max(last.get(call.rank, 0), call.record)
    kept = [c for c in evidence.calls if c.state is not CallState.COMPLETED or last[c.rank] == c.record]
    return dataclasses.replace(evidence, calls=kept)
