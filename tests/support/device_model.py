"""Ranks with a host and a device each. Hosts enqueue calls and may run ahead. Devices execute a group's calls in order.

As in NCCL, a collective completes once every member's device has reached it, and sends and receives complete in pairs.
When nothing moves any more, the state is evidence with known truth.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field

from otel_fr.match import Call, CallState, Ending, Evidence, Group, Progress, Rank, Signature

WINDOW = 2.0
Place = tuple[str, int] | tuple[str, int, int, int]
"""(group, number), or (group, source, destination, number within the pair)."""


@dataclass(frozen=True)
class Op:
    """A step of a rank's program. ``peer``: for a send or receive."""

    group: Group
    signature: Signature
    peer: int | None = None


@dataclass
class Issued:
    op: Op
    place: Place
    record: int
    number: int
    completed: bool = False


@dataclass
class Machine:
    """A job.

    Attributes:
        depth: calls that a host may have in flight (1: it waits for each).
        stuck: rank -> number of records that its device finishes.
        silent: rank -> the last record that its device executes. From the stuck record on, other ranks complete these
            calls, but the rank never sees them complete (as after a GPU error).
    """

    programs: dict[int, list[Op]]
    depth: int = 1
    stuck: dict[int, int] = field(default_factory=dict)
    silent: dict[int, int] = field(default_factory=dict)
    issued: dict[int, list[Issued]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[tuple[object, ...], int] = field(default_factory=lambda: defaultdict(int))
    queues: dict[tuple[int, str], deque[Issued]] = field(default_factory=lambda: defaultdict(deque))
    arrived: dict[Place, dict[int, Issued]] = field(default_factory=lambda: defaultdict(dict))
    done: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def run(self, rng: random.Random) -> None:
        """Run until nothing moves."""
        ranks = list(self.programs)
        moved = [True]
        while any(moved):
            rng.shuffle(ranks)
            moved = [self._step(rank) for rank in ranks]

    def _step(self, rank: int) -> bool:
        return self._issue(rank) | self._execute(rank)

    def _issue(self, rank: int) -> bool:
        mine = self.issued[rank]
        still = sum(not call.completed for call in mine[-2 * self.depth - 2 :])
        if len(mine) >= len(self.programs[rank]) or still >= self.depth:
            return False
        op = self.programs[rank][len(mine)]
        if op.peer is None:
            number = self.counts[rank, op.group.id] = self.counts[rank, op.group.id] + 1
            place: Place = (op.group.id, number)
            stream = op.group.id
        else:
            pair = (rank, op.peer) if op.signature.operation == "send" else (op.peer, rank)
            before = self.counts[rank, op.group.id, op.signature.operation, pair]
            self.counts[rank, op.group.id, op.signature.operation, pair] += 1
            place = (op.group.id, *pair, before)
            number = self.counts[rank, op.group.id, "p2p"] = self.counts[rank, op.group.id, "p2p"] + 1
            stream = f"{op.group.id} {op.signature.operation} {pair}"
        call = Issued(op, place, len(mine), number)
        mine.append(call)
        self.queues[rank, stream].append(call)
        return True

    def _execute(self, rank: int) -> bool:
        """Let the device of ``rank`` begin the next call of each queue. A call that all have begun completes."""
        moved = False
        for (owner, _), queue in self.queues.items():
            if owner != rank or not queue or rank in self.arrived[queue[0].place]:
                continue
            if queue[0].record > self.silent.get(rank, self.stuck.get(rank, 10**9)):
                continue
            self.arrived[queue[0].place][rank] = queue[0]
            moved = True
            self._complete(queue[0])
        return moved

    def _complete(self, call: Issued) -> None:
        there = self.arrived[call.place]
        wanted = set(call.op.group.ranks) if len(call.place) == 2 else set(call.place[1:3])
        same = {c.op.signature for c in there.values()}
        if set(there) != wanted or (len(call.place) == 2 and len(same) > 1):
            return
        for rank, own in there.items():
            stuck = self.stuck.get(rank, 10**9)
            own.completed = own.record < stuck
            if own.record < max(stuck, self.silent.get(rank, 0)):
                queue = next(q for (owner, _), q in self.queues.items() if owner == rank and q and q[0] is own)
                queue.popleft()

    def evidence(self, *, ages: bool = True) -> Evidence:
        """Return the recorders' evidence when nothing moves any more. ``ages``: the ages of calls are known."""
        groups = {op.group.id: op.group for program in self.programs.values() for op in program}
        ranks = {rank: Rank(rank, idle=10.0) for rank in self.programs}
        calls = []
        for rank, mine in self.issued.items():
            info = ranks[rank]
            if len(mine) == len(self.programs[rank]) and all(call.completed for call in mine):
                info.ending = Ending.CLEAN
            for call in mine:
                calls.append(self._call(rank, call, ages))
                if len(call.place) == 2:
                    progress = info.progress.setdefault(call.op.group.id, Progress(0, 0))
                    progress.enqueued = call.number
                    progress.completed = call.number if call.completed else progress.completed
        return Evidence(groups=groups, calls=calls, ranks=ranks, window=WINDOW, world_size=len(self.programs))

    def _call(self, rank: int, call: Issued, ages: bool) -> Call:
        p2p = len(call.place) == 4
        state = CallState.COMPLETED if call.completed else CallState.IN_FLIGHT
        return Call(
            rank=rank,
            group=call.op.group.id,
            stream="p2p" if p2p else "collective",
            sequence_id=call.number,
            record=call.record,
            signature=call.op.signature,
            state=state,
            pair_index=call.place[3] if len(call.place) == 4 else 0,
            age=10.0 if ages and not call.completed else None,
            site=f"train.py:{call.record} step",
        )


def hybrid_groups(tp: int, dp: int, pp: int) -> list[Group]:
    """Return the default group, and the groups of tensor, data and pipeline parallelism.

    rank = (pp * DP + dp) * TP + tp.
    """
    world = tp * dp * pp
    rows = [tuple(range(i, i + tp)) for i in range(0, world, tp)]
    replicas = [tuple(range(i * tp * dp + t, (i + 1) * tp * dp, tp)) for i in range(pp) for t in range(tp)]
    stages = [tuple(range(i * tp * dp, (i + 1) * tp * dp)) for i in range(pp)]
    pipelines = [tuple(range(i, world, tp * dp)) for i in range(tp * dp)]
    groups = [Group("g0", "0", "default_pg", tuple(range(world)))]
    for kind, members in (("tp", rows), ("dp", replicas), ("tp_dp", stages), ("pp", pipelines)):
        for ranks in members:
            groups.append(Group(f"{kind}{ranks[0]}", str(len(groups)), kind, ranks))
    return groups


def hybrid_programs(
    rng: random.Random, groups: list[Group], steps: int, layer: list[str] | None = None
) -> dict[int, list[Op]]:
    """Return the programs of a job with `hybrid_groups`. Each step has the pipeline's stages, then calls of all ranks.

    ``layer``: the kinds of groups in which a stage makes its collectives, in order; by default random.
    """
    of = {kind: [g for g in groups if g.description == kind] for kind in ("tp", "dp", "tp_dp", "pp", "default_pg")}
    programs: dict[int, list[Op]] = {rank: [] for rank in groups[0].ranks}
    layer = layer or [rng.choice(["tp", "tp", "tp_dp", "dp"]) for _ in range(rng.randint(2, 8))]
    kinds = {kind: random_signature(rng, of[kind][0]) for kind in ("tp", "dp", "tp_dp", "default_pg")}
    for _ in range(steps):
        for stage in of["tp_dp"]:
            for pipeline in of["pp"]:
                at = next(i for i, rank in enumerate(pipeline.ranks) if rank in stage.ranks)
                if at:
                    _message(programs, pipeline, pipeline.ranks[at - 1], pipeline.ranks[at])
            for kind in layer:
                for group in of[kind]:
                    if group.ranks[0] in stage.ranks:
                        _everybody(programs, Op(group, kinds[kind]))
        for kind in ("dp", "default_pg"):
            for group in of[kind]:
                _everybody(programs, Op(group, kinds[kind]))
    return programs


def _everybody(programs: dict[int, list[Op]], op: Op) -> None:
    for rank in op.group.ranks:
        programs[rank].append(op)


def _message(programs: dict[int, list[Op]], group: Group, source: int, destination: int) -> None:
    for rank, peer, operation in ((source, destination, "send"), (destination, source, "recv")):
        signature = Signature(operation, ((8,),), ((8,),), ("Float",), ("Float",), peer=peer, tag=0)
        programs[rank].append(Op(group, signature, peer))


def random_signature(rng: random.Random, group: Group) -> Signature:
    operation = rng.choice(["all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "barrier"])
    if operation == "barrier":
        return Signature(operation)
    members, length = len(group.ranks), rng.choice([2, 8, 512])
    small, large = ((length,),), ((length * members,),)
    ins, outs = {
        "all_gather_into_tensor": (small, large),
        "reduce_scatter_tensor": (large, small),
    }.get(operation, (small, small))
    reduces = operation in ("all_reduce", "reduce_scatter_tensor")
    return Signature(
        operation, ins, outs, ("Float",), ("Float",), reduce_op="sum" if reduces else None,
        root=group.ranks[0] if operation == "broadcast" else None,
    )  # fmt: skip
