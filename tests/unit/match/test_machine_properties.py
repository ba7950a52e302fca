"""Hosts that run ahead of their devices, messages, rings that wrapped, files that are missing: silence or the truth."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr.match import Category, Ending, Rank, diagnose
from tests.support.device_model import Machine, Op, random_programs
from tests.support.verdicts import causes

seeds = st.integers(0, 2**32)
depths = st.integers(1, 12)
rings = st.integers(1, 64)


@given(seeds, depths, st.integers(0, 120), rings, st.floats(0, 0.3))
def test_a_healthy_job_raises_nothing_whatever_is_missing(
    seed: int, depth: int, ticks: int, ring: int, lag: float
) -> None:
    rng = random.Random(seed)
    world = rng.randint(2, 8)
    machine = Machine(random_programs(rng, world, rng.randint(1, 60)), depth)
    absent = frozenset(rng.sample(range(world), rng.randint(0, world - 1)))
    machine.run(rng, ticks)
    assert diagnose(machine.evidence(rng, still=False, ring=ring, lag=lag, absent=absent)) == []
    assert machine.run(rng)
    assert diagnose(machine.evidence(rng, still=True, ring=ring, absent=absent, ages=rng.random() < 0.5)) == []


@given(st.integers(0, 2**32))
@settings(max_examples=6)
def test_thousands_of_collectives_raise_nothing(seed: int) -> None:
    rng = random.Random(seed)
    machine = Machine(random_programs(rng, 8, 2_000), rng.randint(1, 12))
    assert machine.run(rng)
    assert diagnose(machine.evidence(rng, still=True, ring=rng.choice([200, 10**6]), ages=False)) == []


def _collective(rng: random.Random, programs: dict[int, list[Op]], least: int = 2) -> tuple[int, int] | None:
    """A rank, and the index of a collective with others in its program."""
    found = [
        (rank, index)
        for rank, program in programs.items()
        for index, op in enumerate(program)
        if op.peer is None and len(op.group.ranks) >= least
    ]
    return rng.choice(found) if found else None


@given(seeds, depths, st.booleans(), st.booleans())
def test_only_the_rank_that_stops_is_named(seed: int, depth: int, killed: bool, ages: bool) -> None:
    rng = random.Random(seed)
    world = rng.randint(2, 8)
    programs = random_programs(rng, world, rng.randint(2, 60))
    place = _collective(rng, programs)
    if place is None:
        return
    rank, index = place
    whole = {r: list(program) for r, program in programs.items()}
    programs[rank] = programs[rank][:index]
    machine = Machine(programs, depth)
    machine.run(rng)
    end = Rank(rank, ending=Ending.KILLED, signal=9) if killed else Rank(rank, site="train.py:1 load")
    others = [r for r in range(world) if r != rank]
    absent = frozenset(rng.sample(others, rng.randint(0, len(others) - 1))) if rng.random() < 0.5 else frozenset()
    evidence = machine.evidence(rng, still=True, absent=absent, ages=ages, ends={rank: end})
    findings = diagnose(evidence)
    found = causes(findings)
    waits_for_it = [r for r in others if r not in absent and any(not c.completed for c in machine.issued[r])]
    if not waits_for_it and not killed:
        assert found == [], "the ranks that could show it have left no file"
        return
    accused = {culprit for finding in found for culprit in finding.culprit_ranks}
    if absent:
        assert accused <= {rank} | absent, "no rank with a file is accused wrongly"
        return
    assert accused == {rank}
    (cause,) = found
    consequences = [finding for finding in findings if finding is not cause]
    assert all((one.caused_by, one.culprit_ranks, one.stacks) == (cause.key, (), {}) for one in consequences)
    if not killed and whole[rank][index].group.ranks != (rank,) and depth == 1:
        assert cause.category in (Category.MISSING_RANK, Category.UNMATCHED_P2P)
        joined = {(c.op.group.id, c.number) for c in machine.issued[rank] if c.op.peer is None}
        assert cause.group is not None
        assert cause.p2p or (cause.group.id, cause.sequence_id) not in joined


@given(seeds, st.integers(4, 12), st.booleans())
def test_a_device_that_stops_completing_is_named_or_nothing_is(seed: int, depth: int, ages: bool) -> None:
    rng = random.Random(seed)
    world = rng.choice([4, 6, 8])
    programs = random_programs(rng, world, 60, p2p=False)
    rank = rng.randrange(world)
    machine = Machine(programs, depth, stuck={rank: rng.randint(0, max(0, len(programs[rank]) - 1))})
    machine.run(rng)
    found = causes(diagnose(machine.evidence(rng, still=True, ages=ages)))
    assert {culprit for finding in found for culprit in finding.culprit_ranks} <= {rank}
    assert all(finding.stuck_on in ("device", None) for finding in found)


@given(seeds, depths)
def test_shuffled_evidence_gives_the_same_verdict(seed: int, depth: int) -> None:
    rng = random.Random(seed)
    programs = random_programs(rng, rng.randint(2, 8), rng.randint(2, 40))
    for rank in rng.sample(sorted(programs), rng.randint(1, 2)):
        programs[rank] = programs[rank][: rng.randint(0, len(programs[rank]))]
    machine = Machine(programs, depth)
    machine.run(rng)
    evidence = machine.evidence(rng, still=True)
    first = diagnose(evidence)
    calls = list(evidence.calls)
    rng.shuffle(calls)
    evidence.calls = calls
    evidence.ranks = dict(rng.sample(list(evidence.ranks.items()), len(evidence.ranks)))
    evidence.groups = dict(rng.sample(list(evidence.groups.items()), len(evidence.groups)))
    assert diagnose(evidence) == first
