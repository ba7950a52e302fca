"""A small model of ranks that run programs of collectives, to make evidence with known truth.

Every rank walks through its calls in order; a call completes when all members stand at the same number of the same
group. A fault stops or changes one rank. What is left when nothing moves any more is the evidence.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from otel_fr.match import Call, CallState, Ending, Evidence, Group, Progress, Rank, Signature

WINDOW = 2.0
OPERATIONS = ("all_reduce", "broadcast", "all_gather_into_tensor", "barrier")


@dataclass
class Step:
    group: Group
    signature: Signature


@dataclass
class Job:
    """``program``: what every member of a step's group does, in this order. ``faults`` change single ranks' steps."""

    world: int
    groups: list[Group]
    program: list[Step]
    overrides: dict[tuple[int, int], Step | None] = field(default_factory=dict)
    stops: dict[int, tuple[int, Rank]] = field(default_factory=dict)
    ring: int = 10_000

    def steps_of(self, rank: int) -> list[tuple[int, Step]]:
        steps = []
        for number, step in enumerate(self.program):
            if rank not in step.group.ranks:
                continue
            if rank in self.stops and number >= self.stops[rank][0]:
                break
            changed = self.overrides.get((rank, number), step)
            if changed is not None:
                steps.append((number, changed))
        return steps

    def run(self, rng: random.Random | None = None, ticks: int = 10**9) -> Evidence:
        """Let the ranks run until nothing moves, or for ``ticks`` single steps of random ranks."""
        todo = {rank: self.steps_of(rank) for rank in range(self.world)}
        at = dict.fromkeys(range(self.world), 0)
        issued: dict[tuple[str, int], dict[int, int]] = {}
        counts: dict[tuple[int, str], int] = {}
        calls: dict[int, list[list[object]]] = {rank: [] for rank in range(self.world)}
        blocked: dict[int, tuple[str, int]] = {}
        moved = True
        while moved and ticks > 0:
            moved = False
            order = list(range(self.world))
            if rng is not None:
                rng.shuffle(order)
            for rank in order:
                if ticks <= 0:
                    break
                if rank in blocked:
                    key = blocked[rank]
                    group = next(g for g in self.groups if g.id == key[0])
                    if set(issued[key]) >= set(group.ranks):
                        del blocked[rank]
                        calls[rank][issued[key][rank]][2] = CallState.COMPLETED
                        moved = True
                    else:
                        continue
                if at[rank] < len(todo[rank]):
                    step = todo[rank][at[rank]][1]
                    at[rank] += 1
                    number = counts[rank, step.group.id] = counts.get((rank, step.group.id), 0) + 1
                    issued.setdefault((step.group.id, number), {})[rank] = len(calls[rank])
                    calls[rank].append([step, number, CallState.IN_FLIGHT])
                    blocked[rank] = (step.group.id, number)
                    moved = True
                    ticks -= 1
        return self._evidence(calls, stuck=ticks > 0)

    def _evidence(self, calls: dict[int, list[list[object]]], stuck: bool) -> Evidence:
        ranks, out = {}, []
        for rank, mine in calls.items():
            info = self.stops[rank][1] if rank in self.stops else Rank(rank)
            if rank not in self.stops and all(c[2] is CallState.COMPLETED for c in mine) and stuck:
                info.ending = Ending.CLEAN
            info.idle = 10.0 if stuck else 0.1
            for number, (step, seq, state) in enumerate(mine):
                assert isinstance(step, Step)
                assert isinstance(seq, int)
                assert isinstance(state, CallState)
                progress = info.progress.setdefault(step.group.id, Progress(0, 0))
                progress.enqueued = seq
                if state is CallState.COMPLETED:
                    progress.completed = seq
                if number >= len(mine) - self.ring:
                    age = None if state is CallState.COMPLETED else (10.0 if stuck else 0.1)
                    out.append(
                        Call(
                            rank=rank,
                            group=step.group.id,
                            stream="collective",
                            sequence_id=seq,
                            record=number,
                            signature=step.signature,
                            state=state,
                            age=age,
                            site=f"train.py:{number} step",
                        )
                    )
            ranks[rank] = info
        return Evidence(
            groups={g.id: g for g in self.groups}, calls=out, ranks=ranks, window=WINDOW, world_size=self.world
        )


def signature(rng: random.Random, members: int) -> Signature:
    operation = rng.choice(OPERATIONS)
    if operation == "barrier":
        return Signature(operation)
    length = rng.choice([4, 8, 1024])
    size = ((length,),)
    out = ((length * members,),) if operation == "all_gather_into_tensor" else size
    return Signature(
        operation, size, out, ("Float",), ("Float",),
        reduce_op="sum" if operation == "all_reduce" else None,
        root=0 if operation == "broadcast" else None,
    )  # fmt: skip


def random_job(rng: random.Random, length: int = 40) -> Job:
    """A healthy job: 2 to 8 ranks, the default group and up to 4 random overlapping ones, one order for all."""
    world = rng.randint(2, 8)
    groups = [Group("g0", "0", "default_pg", tuple(range(world)))]
    for number in range(1, rng.randint(1, 5)):
        members = tuple(sorted(rng.sample(range(world), rng.randint(1, world))))
        groups.append(Group(f"g{number}", str(number), f"sub{number}", members))
    where = [rng.choice(groups) for _ in range(rng.randint(1, length))]
    program = [Step(group, signature(rng, len(group.ranks))) for group in where]
    return Job(world, groups, program)
