"""Random programs over random overlapping groups: silence where all is well, the truth where one fault was put in."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_fr.match import Category, Ending, Evidence, Rank, Signature, diagnose
from tests.support.job_model import Job, Step, random_job
from tests.support.verdicts import causes

seeds = st.integers(0, 2**32)


@given(seeds, st.integers(0, 200), st.integers(1, 64))
@settings(max_examples=150, deadline=None)
def test_a_healthy_job_raises_nothing_at_any_moment(seed: int, ticks: int, ring: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    job.ring = ring
    assert diagnose(job.run(rng, ticks)) == []
    assert diagnose(job.run(rng)) == []


def _place_for_fault(rng: random.Random, job: Job) -> tuple[int, int] | None:
    """A rank and a step of a group with others in it."""
    numbers = [n for n, step in enumerate(job.program) if len(step.group.ranks) > 1]
    if not numbers:
        return None
    number = rng.choice(numbers)
    return rng.choice(job.program[number].group.ranks), number


def _sequence(job: Job, rank: int, number: int) -> int:
    group = job.program[number].group
    return 1 + sum(step.group is group for step in job.program[:number])


@given(seeds, st.sampled_from(["idle", "killed", "raised", "blocked"]), st.integers(1, 64))
@settings(max_examples=150, deadline=None)
def test_one_rank_that_stops_is_the_only_culprit(seed: int, how: str, ring: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    job.ring = ring
    place = _place_for_fault(rng, job)
    if place is None:
        return
    rank, number = place
    info = Rank(rank, site="train.py:1 load")
    if how == "killed":
        info.ending, info.signal = Ending.KILLED, 9
    elif how == "raised":
        info.ending, info.exception = Ending.RAISED, "ValueError: bad sample"
    elif how == "blocked":
        info.python_blocked = True
    job.stops[rank] = (number, info)
    findings = diagnose(job.run(rng))
    found = causes(findings)
    assert [f.culprit_ranks for f in found] == [(rank,)]
    expected = {
        "idle": Category.MISSING_RANK,
        "killed": Category.RANK_DEAD,
        "raised": Category.RANK_DEAD,
        "blocked": Category.RANK_STUCK,
    }
    assert found[0].category is expected[how]
    assert all(f.caused_by == found[0].key for f in findings if f is not found[0])
    assert all(f.culprit_ranks == () and not f.stacks for f in findings if f is not found[0])
    assert found[0].group is not None
    assert found[0].group.id in {step.group.id for step in job.program[number:] if rank in step.group.ranks}


@given(seeds)
@settings(max_examples=150, deadline=None)
def test_the_odd_rank_out_is_named_at_the_first_mismatch(seed: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    place = _place_for_fault(rng, job)
    if place is None:
        return
    rank, number = place
    step = job.program[number]
    wrong = replace_signature(rng, step)
    if wrong is None:
        return
    job.overrides[rank, number] = Step(step.group, wrong[1])
    findings = diagnose(job.run(rng))
    found = causes(findings)
    assert len(found) == 1
    assert found[0].category is wrong[0]
    assert found[0].sequence_id == _sequence(job, rank, number)
    if len(step.group.ranks) > 2:
        assert found[0].culprit_ranks == (rank,)
    else:
        assert found[0].culprit_ranks == tuple(sorted(step.group.ranks))


def replace_signature(rng: random.Random, step: Step) -> tuple[Category, Signature] | None:
    old = step.signature
    kind = rng.choice(["operation", "size", "dtype", "root", "reduce_op"])
    if kind == "operation":
        other = "barrier" if old.operation != "barrier" else "all_reduce"
        return Category.OP_MISMATCH, old._replace(operation=other)
    if old.operation == "barrier":
        return None
    if kind == "size":
        return Category.SIZE_MISMATCH, old._replace(input_sizes=((5,),), output_sizes=((5,),))
    if kind == "dtype":
        return Category.DTYPE_MISMATCH, old._replace(input_dtypes=("Double",), output_dtypes=("Double",))
    if kind == "root" and old.operation == "broadcast":
        return Category.ROOT_MISMATCH, old._replace(root=1)
    if kind == "reduce_op" and old.operation == "all_reduce":
        return Category.REDUCE_OP_MISMATCH, old._replace(reduce_op="max")
    return None


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_the_verdict_does_not_depend_on_the_order_of_the_evidence(seed: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    place = _place_for_fault(rng, job)
    if place is None:
        return
    job.stops[place[0]] = (place[1], Rank(place[0]))
    evidence = job.run(rng)
    shuffled_calls = list(evidence.calls)
    rng.shuffle(shuffled_calls)
    ranks = list(evidence.ranks.items())
    rng.shuffle(ranks)
    groups = list(evidence.groups.items())
    rng.shuffle(groups)
    again = Evidence(
        groups=dict(groups),
        calls=shuffled_calls,
        ranks=dict(ranks),
        window=evidence.window,
        world_size=evidence.world_size,
    )
    assert diagnose(again) == diagnose(evidence)


@given(seeds)
@settings(max_examples=100, deadline=None)
def test_two_groups_entered_in_opposite_order_are_a_deadlock(seed: int) -> None:
    rng = random.Random(seed)
    job = random_job(rng)
    number = rng.randint(0, len(job.program))
    a, b = (replace(job.groups[0], id=f"x{i}", name=f"x{i}", description=f"x{i}") for i in (1, 2))
    job.groups += [a, b]
    steps = [Step(group, Signature("barrier")) for group in (a, b)]
    job.program[number:number] = steps
    rank = rng.randrange(job.world)
    job.overrides[rank, number] = Step(b, steps[0].signature)
    job.overrides[rank, number + 1] = Step(a, steps[1].signature)
    found = causes(diagnose(job.run(rng)))
    assert [f.category for f in found] == [Category.DEADLOCK]
    if job.world > 2:
        assert found[0].culprit_ranks == (rank,), "the others all take the two in one order"
    else:
        assert found[0].culprit_ranks == (0, 1), "each of the two waits for the other one, and neither has a majority"
    assert set(found[0].waiting_ranks) == set(range(job.world))
