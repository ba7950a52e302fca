"""The calls of a healthy job's ranks: process groups of common layouts, and steps of collectives and messages.

Every job is one list of collectives and messages in one order. Each rank calls its own part in that order.
So no healthy job blocks itself, whether its ranks wait for each call or run ahead of their devices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from otel_fr.match import Group, Signature

Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One call of one rank.

    Attributes:
        token: equal for calls that a collective library can execute as one collective.
        peer: of a send or receive. host_waits: the rank's Python waits for the call and all calls before it.
        step: number of the program's step; -1 for calls of the preparation and of checkpoints.
    """

    group: Group
    signature: Signature
    token: object
    peer: int | None = None
    host_waits: bool = False
    step: int = -1
    site: str = ""

    @property
    def is_message(self) -> bool:
        return self.peer is not None


@dataclass(slots=True)
class Program:
    """A healthy job.

    Attributes:
        calls: rank -> its calls. groups: all groups. layout: name of the layout.
    """

    layout: str
    world: int
    groups: list[Group]
    calls: dict[int, list[Op]] = field(default_factory=dict)

    def collective(
        self, group: Group, signature: Signature, *, step: int = -1, host_waits: bool = False, site: str = ""
    ) -> None:
        """Add a collective that all members of the group call with the same arguments."""
        op = Op(group, signature, signature, host_waits=host_waits, step=step, site=site)
        for rank in group.ranks:
            self.calls[rank].append(op)

    def pieces(self, group: Group, signatures: dict[int, Signature], token: object, step: int, site: str) -> None:
        """Add a collective in which each member has a piece of its own size."""
        for rank, signature in signatures.items():
            self.calls[rank].append(Op(group, signature, token, step=step, site=site))

    def message(self, group: Group, source: int, destination: int, length: int, step: int, site: str) -> None:
        size: Sizes = ((length,),)
        for rank, peer, operation in ((source, destination, "send"), (destination, source, "recv")):
            signature = Signature(operation, size, size, ("Float",), ("Float",), peer=peer, tag=0)
            token = ("message", size, "Float")
            self.calls[rank].append(Op(group, signature, token, peer=peer, step=step, site=site))


def simple(operation: str, length: int, group: Group, root: int | None = None) -> Signature:
    """Return the signature of a collective with one tensor of ``length`` floats, or of ``length`` for each member."""
    if operation == "barrier":
        return Signature(operation)
    small, large = ((length,),), ((length * len(group.ranks),),)
    ins, outs = {
        "all_gather_into_tensor": (small, large),
        "reduce_scatter_tensor": (large, small),
        "all_to_all_single": (large, large),
    }.get(operation, (small, small))
    reduces = operation in ("all_reduce", "reduce_scatter_tensor", "reduce")
    return Signature(
        operation, ins, outs, ("Float",), ("Float",),
        reduce_op="sum" if reduces else None,
        root=(group.ranks[0] if root is None else root) if operation in ("broadcast", "reduce") else None,
    )  # fmt: skip


LENGTHS = (2, 8, 512, 4096, 65536)
_EVERYWHERE = ("all_reduce", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "reduce")

Step = Callable[[int], None]
"""Adds the calls of one step, given its number."""


def random_program(rng: random.Random, layout: str, steps: int | None = None) -> Program:
    """Make a healthy job of a layout (`LAYOUTS`): preparation, steps with checkpoints between them, an end."""
    program, step = LAYOUTS[layout](rng)
    world = program.groups[0]
    if rng.random() < 0.7:
        program.collective(world, simple("broadcast", 4096, world), site="train.py:10 prepare")
    if rng.random() < 0.5:
        program.collective(world, Signature("barrier"), host_waits=True, site="train.py:12 prepare")
    every = rng.choice([0, 0, 2, 3])
    meets = rng.random() < 0.6
    for number in range(steps or rng.randint(2, 10)):
        step(number)
        if meets:  # gradient norm, loss
            program.collective(world, simple("all_reduce", 1, world), step=number, host_waits=rng.random() < 0.7,
                               site="train.py:70 train")  # fmt: skip
        if every and number % every == every - 1:
            if rng.random() < 0.5:
                _gather_to_first(program, world, "train.py:80 save")
            program.collective(world, Signature("barrier"), host_waits=True, site="train.py:82 save")
    if rng.random() < 0.7:
        program.collective(world, Signature("barrier"), host_waits=True, site="train.py:90 main")
    return program


def _begin(layout: str, world: int) -> tuple[Program, Group]:
    everybody = Group("g0", "0", "default_pg", tuple(range(world)))
    return Program(layout, world, [everybody], {rank: [] for rank in range(world)}), everybody


def _gather_to_first(program: Program, group: Group, site: str) -> None:
    """Add a gather. Only the root has the list of outputs."""
    root, size = group.ranks[0], (16,)
    signatures = {
        rank: Signature("gather", (size,), (size,) * len(group.ranks) if rank == root else (), ("Float",),
                        ("Float",) * len(group.ranks) if rank == root else (), root=root)
        for rank in group.ranks
    }  # fmt: skip
    program.pieces(group, signatures, ("gather", root, size), -1, site)


def _uneven_exchange(program: Program, rng: random.Random, group: Group, step: int, site: str) -> None:
    """Add an all_to_all_single whose splits differ from rank to rank, as in a mixture of experts."""
    members = group.ranks
    sent = {a: [rng.randint(0, 9) for _ in members] for a in members}
    signatures = {}
    for position, rank in enumerate(members):
        taken = [sent[other][position] for other in members]
        signatures[rank] = Signature(
            "all_to_all_single", ((sum(sent[rank]), 4),), ((sum(taken), 4),), ("Float",), ("Float",),
            input_splits=tuple(sent[rank]), output_splits=tuple(taken),
        )  # fmt: skip
    program.pieces(group, signatures, ("all_to_all_single", tuple(map(tuple, sent.values()))), step, site)


@dataclass(frozen=True)
class _Line:
    """A line of the training script that calls a collective in each step."""

    operation: str
    length: int
    site: str
    root: int = 0

    def call(self, program: Program, group: Group, step: int, grown: int = 1) -> None:
        root = group.ranks[self.root % len(group.ranks)]
        signature = simple(self.operation, self.length * grown, group, root)
        program.collective(group, signature, step=step, site=self.site)


def _lines(rng: random.Random, count: int, operations: tuple[str, ...], start: int, function: str) -> list[_Line]:
    return [
        _Line(rng.choice(operations), rng.choice(LENGTHS), f"train.py:{start + i} {function}", rng.randrange(8))
        for i in range(count)
    ]


def _world(rng: random.Random) -> tuple[Program, Step]:
    """Data parallelism: buckets of gradients over all ranks."""
    program, world = _begin("world", rng.choice([2, 3, 4, 4, 5, 8, 16]))
    lines = _lines(rng, rng.randint(1, 5), _EVERYWHERE, 30, "backward")
    dynamic, experts = rng.random() < 0.3, rng.random() < 0.25

    def step(number: int) -> None:
        for line in lines:
            line.call(program, world, number, 1 + number % 3 if dynamic else 1)
        if experts:
            _uneven_exchange(program, rng, world, number, "moe.py:7 dispatch")

    return program, step


def _pairs(rng: random.Random) -> tuple[Program, Step]:
    """Groups of two neighbours in a ring, and messages around the ring."""
    program, world = _begin("pairs", rng.choice([4, 6, 8]))
    count = program.world
    pairs = [Group(f"p{i}", f"p{i}", "pair", (i, i + 1)) for i in range(0, count, 2)]
    if rng.random() < 0.5:
        pairs += [Group(f"q{i}", f"q{i}", "neighbours", (i, i + 1)) for i in range(1, count - 1, 2)]
    program.groups += pairs
    lines = _lines(rng, rng.randint(1, 3), ("all_reduce", "all_gather_into_tensor", "broadcast"), 20, "exchange")
    ring = rng.random() < 0.4

    def step(number: int) -> None:
        for group in pairs:
            for line in lines:
                line.call(program, group, number)
        if ring:
            for rank in range(count):
                program.message(world, rank, (rank + 1) % count, 64, number, "ring.py:5 rotate")

    return program, step


def _mesh(layout: str, *sizes: tuple[str, int]) -> tuple[Program, dict[str, list[Group]]]:
    """The groups of a device mesh. The last dimension varies fastest, as in `init_device_mesh`. Size 1 has none."""
    total = 1
    for _, size in sizes:
        total *= size
    program, _ = _begin(layout, total)
    found: dict[str, list[Group]] = {}
    stride = total
    for name, size in sizes:
        stride //= size
        starts = [rank for rank in range(total) if rank // stride % size == 0] if size > 1 else []
        found[name] = [
            Group(f"{name}{i}", f"{name}{i}", f"mesh_{name}", tuple(start + stride * k for k in range(size)))
            for i, start in enumerate(starts)
        ]
        program.groups += found[name]
    return program, found


def _tp_dp(rng: random.Random) -> tuple[Program, Step]:
    """Tensor and data parallelism."""
    dp, tp = rng.choice([(2, 2), (2, 2), (4, 2), (2, 4), (4, 4), (3, 2), (8, 2)])
    program, groups = _mesh("tp_dp", ("dp", dp), ("tp", tp))
    forward = _lines(
        rng, rng.randint(1, 3), ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"), 20, "tp"
    )
    backward = _lines(rng, rng.randint(1, 3), ("all_reduce", "reduce_scatter_tensor"), 40, "dp")

    def step(number: int) -> None:
        for line in forward:
            for group in groups["tp"]:
                line.call(program, group, number)
        for line in backward:
            for group in groups["dp"]:
                line.call(program, group, number)

    return program, step


def _tp_dp_pp(rng: random.Random) -> tuple[Program, Step]:  # noqa: C901
    """Pipeline stages with tensor and data parallelism in each. Stages have different numbers of layers."""
    pp, dp, tp = rng.choice([(2, 2, 2), (2, 2, 2), (4, 2, 1), (4, 1, 2), (2, 1, 2), (2, 2, 4), (4, 2, 2), (3, 2, 1)])
    program, groups = _mesh("tp_dp_pp", ("pp", pp), ("dp", dp), ("tp", tp))
    stage_of = {rank: rank // (dp * tp) for rank in range(program.world)}
    layers = [_lines(rng, rng.randint(1, 2), ("all_reduce", "all_gather_into_tensor"), 20, "layer") for _ in range(pp)]
    grads = _lines(rng, rng.randint(1, 2), ("all_reduce", "reduce_scatter_tensor"), 60, "dp")
    batches, length = rng.randint(1, 3), rng.choice([64, 4096])

    def work(stage: int, number: int) -> None:
        for line in layers[stage]:
            for group in groups["tp"]:
                if stage_of[group.ranks[0]] == stage:
                    line.call(program, group, number)

    def shift(stage: int, other: int, number: int, site: str) -> None:
        for group in groups["pp"]:
            program.message(group, group.ranks[stage], group.ranks[other], length, number, site)

    def step(number: int) -> None:
        for _ in range(batches):
            for stage in range(pp):
                if stage:
                    shift(stage - 1, stage, number, "pipeline.py:11 forward")
                work(stage, number)
        for _ in range(batches):
            for stage in reversed(range(pp)):
                if stage < pp - 1:
                    shift(stage + 1, stage, number, "pipeline.py:31 backward")
                work(stage, number)
        for line in grads:
            for group in groups["dp"]:
                line.call(program, group, number)

    return program, step


def _hsdp(rng: random.Random) -> tuple[Program, Step]:
    """Hybrid sharding: parameters are sharded in each replica, and gradients reduced over the replicas."""
    replicas, shards = rng.choice([(2, 2), (2, 4), (4, 2), (2, 3), (4, 4)])
    program, groups = _mesh("hsdp", ("replicate", replicas), ("shard", shards))
    layers = [rng.choice(LENGTHS) for _ in range(rng.randint(1, 3))]

    def every(name: str, operation: str, length: int, number: int, site: str) -> None:
        for group in groups[name]:
            program.collective(group, simple(operation, length, group), step=number, site=site)

    def step(number: int) -> None:
        for length in layers:
            every("shard", "all_gather_into_tensor", length, number, "fsdp.py:20 forward")
        for length in reversed(layers):
            every("shard", "all_gather_into_tensor", length, number, "fsdp.py:30 backward")
            every("shard", "reduce_scatter_tensor", length, number, "fsdp.py:31 backward")
            every("replicate", "all_reduce", length, number, "fsdp.py:32 backward")

    return program, step


def _overlap(rng: random.Random) -> tuple[Program, Step]:
    """Random groups that share ranks, each with its own calls."""
    program, _ = _begin("overlap", rng.randint(3, 10))
    for number in range(1, rng.randint(2, 6)):
        members = tuple(sorted(rng.sample(range(program.world), rng.randint(2, program.world))))
        program.groups.append(Group(f"g{number}", str(number), f"sub{number}", members))
    where = [rng.choice(program.groups) for _ in range(rng.randint(2, 8))]
    lines = _lines(rng, len(where), (*_EVERYWHERE, "all_to_all_single", "barrier"), 20, "train")

    def step(number: int) -> None:
        for line, group in zip(lines, where, strict=True):
            line.call(program, group, number)

    return program, step


LAYOUTS: dict[str, Callable[[random.Random], tuple[Program, Step]]] = {
    "world": _world,
    "pairs": _pairs,
    "tp_dp": _tp_dp,
    "tp_dp_pp": _tp_dp_pp,
    "hsdp": _hsdp,
    "overlap": _overlap,
}


def with_calls(program: Program, rank: int, calls: list[Op]) -> Program:
    """Return the program with other calls for one rank."""
    return replace(program, calls={**program.calls, rank: calls})
