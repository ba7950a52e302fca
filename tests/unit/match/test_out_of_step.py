"""Ranks a step short or long under hybrid parallelism: they are named, not all ranks that wait for each other."""

from __future__ import annotations

import dataclasses
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import CallState, Category, Ending, diagnose
from tests.support import mesh_model
from tests.support.device_model import Machine
from tests.support.evidence import BARRIER, SUM, call, rank, verdict
from tests.support.mesh_model import Program, as_the_collector_sees_it, mesh
from tests.support.verdicts import causes

SHAPES = ((2, 4), (4, 2), (2, 2, 2), (3, 3), (2, 8), (4, 4))


@given(st.integers(0, 2**32), st.sampled_from(SHAPES), st.booleans())
def test_two_ranks_that_are_a_step_short_are_two_culprits(seed: int, shape: tuple[int, ...], live: bool) -> None:
    rng = random.Random(seed)
    ranks = mesh(shape)
    outer, inner = ranks.axes[-2:]
    apart = [
        (a, b) for a, b in combinations(ranks.everyone, 2) if outer[a] is not outer[b] and inner[a] is not inner[b]
    ]
    short = rng.choice(apart)
    program = Program(((inner, SUM), (inner, SUM), (outer, SUM)), rng.randint(3, 9), ((ranks.everyone, BARRIER),))
    evidence = mesh_model.run(rng, ranks, program, dict.fromkeys(short, -1)).evidence()
    found = causes(diagnose(as_the_collector_sees_it(evidence) if live else evidence))
    assert {finding.category for finding in found} == {Category.MISSING_RANK}
    assert sorted(rank for finding in found for rank in finding.culprit_ranks) == list(short)


def two_by_two() -> tuple[mesh_model.Mesh, Program]:
    ranks = mesh((2, 2))
    dp, tp = ranks.axes
    return ranks, Program(((tp, SUM), (dp, SUM)), 5, ((ranks.everyone, BARRIER),))


@pytest.mark.parametrize("described", [True, False])
def test_two_orders_of_two_groups_stay_a_deadlock(described: bool) -> None:
    """Half of the ranks take the two in one order and half in the other: no rank left a call out."""
    ranks = mesh((2, 2), described=described)
    rng = random.Random(1)
    dp, tp = ranks.axes
    whole = Program(((tp, SUM), (dp, SUM)), 3)
    programs = {rank: whole.calls(rank) for rank in range(4)}
    for odd in (0, 3):
        programs[odd] = [*programs[odd][:2], programs[odd][3], programs[odd][2], *programs[odd][4:]]
    machine = Machine(programs)
    machine.run(rng)
    (cause,) = causes(diagnose(machine.evidence()))
    assert (cause.category, cause.culprit_ranks) == (Category.DEADLOCK, (0, 1, 2, 3))


@pytest.mark.parametrize("short", range(4))
def test_a_short_rank_in_a_monitored_barrier_is_named(short: int) -> None:
    """Progress does not count monitored barriers; the call that the rank waits in shows that it is ahead there."""
    ranks, program = two_by_two()
    rng = random.Random(1)
    machine = mesh_model.run(rng, ranks, program, {short: -1})
    evidence = as_the_collector_sees_it(machine.evidence())
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
    evidence = mesh_model.run(rng, ranks, program, {3: -1}).evidence()
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
