"""Ranks a step short or long under hybrid parallelism: they are named, not all ranks that wait for each other."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import CallState, Category, Ending, Finding, diagnose
from tests.support import mesh_model
from tests.support.device_model import Machine
from tests.support.evidence import BARRIER, call, rank, verdict
from tests.support.mesh_model import FAULTS, SHAPES, Program, as_the_collector_sees_it, mesh
from tests.support.verdicts import causes

seeds = st.integers(0, 2**32)


def found_of(machine: Machine, rng: random.Random, *, live: bool) -> list[Finding]:
    evidence = machine.evidence(rng, still=True)
    return diagnose(as_the_collector_sees_it(evidence) if live else evidence)


def waits(machine: Machine) -> bool:
    return any(
        not call.completed or len(machine.issued[rank]) < len(machine.programs[rank])
        for rank in machine.programs
        for call in machine.issued[rank]
    )


@given(seeds, st.sampled_from(SHAPES), st.sampled_from(FAULTS), st.booleans(), st.booleans(), st.sampled_from([1, 4]))
def test_a_rank_that_makes_calls_too_few_or_too_many_is_the_only_culprit(
    seed: int, shape: tuple[int, ...], fault: str, live: bool, described: bool, depth: int
) -> None:
    rng = random.Random(seed)
    ranks = mesh(shape, described=described)
    program = mesh_model.random_program(rng, ranks)
    culprit = rng.randrange(ranks.world)
    at = rng.randrange(program.steps), rng.randrange(len(program.step))
    machine = mesh_model.run(rng, ranks, program, {culprit: fault}, at, depth)
    findings = found_of(machine, rng, live=live)
    found = causes(findings)
    assert bool(found) == waits(machine), "a fault that blocks no rank and mixes up no call does not show"
    if any(finding.category.is_mismatch for finding in found):
        assert culprit in {rank for finding in found for rank in finding.culprit_ranks}
        return  # of two ranks whose calls differ no majority says which is wrong
    assert {rank for finding in found for rank in finding.culprit_ranks} <= {culprit}, found[0].text
    if waits(machine):
        assert found[0].category in (Category.MISSING_RANK, Category.DEADLOCK)
    assert all(finding.culprit_ranks == () for finding in findings if finding.caused_by)


@given(seeds, st.sampled_from(SHAPES[1:]), st.booleans())
def test_two_ranks_that_are_a_step_short_are_two_culprits(seed: int, shape: tuple[int, ...], live: bool) -> None:
    rng = random.Random(seed)
    ranks = mesh(shape)
    outer, inner = ranks.axes[-2:]
    apart = [
        (a, b) for a, b in combinations(range(ranks.world), 2) if outer[a] is not outer[b] and inner[a] is not inner[b]
    ]
    short = rng.choice(apart)
    everyone = dict.fromkeys(range(ranks.world), ranks.everyone)
    step = ((inner, "all_reduce"), (inner, "all_reduce"), (outer, "all_reduce"))
    program = Program((), step, ((everyone, "barrier"),), rng.randint(3, 9))
    machine = mesh_model.run(rng, ranks, program, dict.fromkeys(short, "step short"))
    found = causes(found_of(machine, rng, live=live))
    assert {finding.category for finding in found} == {Category.MISSING_RANK}
    assert sorted(rank for finding in found for rank in finding.culprit_ranks) == list(short)


def two_by_two(end: str = "barrier", *, steps: int = 5) -> tuple[mesh_model.Mesh, Program]:
    ranks = mesh((2, 2))
    dp, tp = ranks.axes
    everyone = dict.fromkeys(range(4), ranks.everyone)
    return ranks, Program((), ((tp, "all_reduce"), (dp, "all_reduce")), ((everyone, end),), steps)


@pytest.mark.parametrize("described", [True, False])
def test_two_orders_of_two_groups_stay_a_deadlock(described: bool) -> None:
    """Half of the ranks take the two in one order and half in the other: no rank left a call out."""
    ranks = mesh((2, 2), described=described)
    rng = random.Random(1)
    dp, tp = ranks.axes
    whole = Program((), ((tp, "all_reduce"), (dp, "all_reduce")), (), 3)
    programs = {rank: mesh_model.calls_of(whole, rank, None, (0, 0)) for rank in range(4)}
    for odd in (0, 3):
        programs[odd] = [*programs[odd][:2], programs[odd][3], programs[odd][2], *programs[odd][4:]]
    machine = Machine(programs)
    assert machine.run(rng)
    (cause,) = causes(diagnose(machine.evidence(rng, still=True)))
    assert (cause.category, cause.culprit_ranks) == (Category.DEADLOCK, (0, 1, 2, 3))


def test_stages_with_programs_of_their_own_do_not_hide_the_short_rank() -> None:
    """The second stage makes twice as many tensor-parallel calls as the first: their numbers are not comparable."""
    ranks = mesh((2, 2, 2))
    rng = random.Random(1)
    _, dp, tp = ranks.axes
    everyone = dict.fromkeys(range(8), ranks.everyone)
    programs = {}
    for r in range(8):
        step = ((tp, "all_reduce"),) * (1 + r // 4) + ((dp, "all_reduce"),)
        program = Program((), step, ((everyone, "barrier"),), 5)
        programs[r] = mesh_model.calls_of(program, r, "step short" if r == 6 else None, (0, 0))
    machine = Machine(programs)
    assert machine.run(rng)
    evidence = machine.evidence(rng, still=True)
    assert any(call.state is CallState.IN_FLIGHT for call in evidence.calls)
    found = causes(diagnose(evidence))
    assert [(f.category, f.culprit_ranks) for f in found] == [(Category.MISSING_RANK, (6,))]


@pytest.mark.parametrize("depth", [4, 16])
def test_a_rank_out_of_step_is_named_where_hosts_run_ahead_of_their_devices(depth: int) -> None:
    """All have joined the barrier; the device of one rank stands in a call that its peer never makes."""
    ranks = mesh((2, 4))
    rng = random.Random(1)
    dp, tp = ranks.axes
    everyone = dict.fromkeys(range(8), ranks.everyone)
    program = Program((), ((tp, "all_reduce"), (dp, "all_reduce")), ((everyone, "barrier"),) * 2, 6)
    machine = mesh_model.run(rng, ranks, program, {5: "call too many"}, (5, 0), depth)
    found = causes(found_of(machine, rng, live=True))
    assert [(f.category, f.culprit_ranks) for f in found] == [(Category.MISSING_RANK, (5,))]


@pytest.mark.parametrize("short", range(4))
def test_a_short_rank_in_a_monitored_barrier_is_named(short: int) -> None:
    """Progress does not count monitored barriers; the call that the rank waits in shows that it is ahead there."""
    ranks, program = two_by_two()
    rng = random.Random(1)
    machine = mesh_model.run(rng, ranks, program, {short: "step short"})
    evidence = as_the_collector_sees_it(machine.evidence(rng, still=True))
    evidence.calls = [
        dataclasses.replace(call, stream="monitored_barrier") if call.signature.operation == "barrier" else call
        for call in evidence.calls
    ]
    evidence.ranks[short].progress.pop("w")
    (cause,) = causes(diagnose(evidence))
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (short,))


def test_ranks_that_are_exiting_because_their_calls_timed_out_still_show_who_is_out_of_step() -> None:
    ranks, program = two_by_two()
    rng = random.Random(1)
    evidence = mesh_model.run(rng, ranks, program, {3: "step short"}).evidence(rng, still=True)
    evidence.calls = [
        call
        if call.state is CallState.COMPLETED
        else dataclasses.replace(call, state=CallState.FAILED, error="timeout", duration=5.0)
        for call in evidence.calls
    ]
    for info in evidence.ranks.values():
        info.ending, info.signal, info.exiting, info.exception = Ending.KILLED, 15, True, "RuntimeError: Timed out"
    (cause,) = causes(diagnose(evidence))
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (3,))


def test_a_call_too_many_that_did_not_fit_and_the_last_one_that_lacks_the_others_are_one_fault() -> None:
    """Rank 1 calls all_reduce before two barriers; its all_reduce meets the others' first barrier, and they end."""
    calls = [call(r, number, CallState.COMPLETED, BARRIER) for r in (0, 2) for number in (1, 2)]
    calls += [call(1, 1, CallState.COMPLETED), call(1, 2, CallState.COMPLETED, BARRIER), call(1, 3, signature=BARRIER)]
    ranks = [rank(0, 2, ending=Ending.CLEAN), rank(1, 3), rank(2, 2, ending=Ending.CLEAN)]
    findings = verdict(calls, ranks)
    (cause,) = causes(findings)
    assert (cause.category, cause.culprit_ranks, cause.sequence_id) == (Category.OP_MISMATCH, (1,), 1)
    assert [(one.sequence_id, one.caused_by) for one in findings if one is not cause] == [(3, cause.key)]
