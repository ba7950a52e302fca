"""Which of several mismatches came first: by the ranks' own order of calls, and the collectives that they share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import Call, CallState, Evidence, Finding, Group, Progress, Rank
from otel_fr.match.facts.instances import line_up
from otel_fr.match.rules.mismatches import positions
from tests.support.evidence import LARGE, SUM, call, judge, world
from tests.support.verdicts import causes

GROUPS = {
    "w": world(4),
    "a": Group("a", "1", "tp", (0, 1, 2)),
    "b": Group("b", "2", "dp", (1, 2, 3)),
    "c": Group("c", "3", "cp", (1, 2)),
}
Step = tuple[str, frozenset[int]]
"""A collective of a group, and the ranks that bring another size to it."""


def calls_of(program: list[Step], lost: frozenset[tuple[int, int]] = frozenset()) -> list[Call]:
    """All complete. ``lost``: (rank, step) of calls without evidence."""
    counts = dict.fromkeys(GROUPS, 0)
    found = []
    for step, (name, odd) in enumerate(program):
        counts[name] += 1
        for rank in GROUPS[name].ranks:
            if (rank, step) not in lost:
                signature = LARGE if rank in odd else SUM
                found.append(call(rank, counts[name], CallState.COMPLETED, signature, group=name, record=step))
    return found


def judged(program: list[Step], lost: frozenset[tuple[int, int]] = frozenset()) -> list[Finding]:
    done = {name: sum(step[0] == name for step in program) for name in GROUPS}
    counts = [{name: Progress(done[name], done[name]) for name in GROUPS if r in GROUPS[name].ranks} for r in range(4)]
    ranks = [Rank(r, idle=0.1, progress=own) for r, own in enumerate(counts)]
    return judge(calls_of(program, lost), ranks, GROUPS.values(), 4)


def before(program: list[Step], lost: frozenset[tuple[int, int]]) -> set[tuple[str, str | None]]:
    """All pairs of an instance and one that comes after it; found by following every path."""
    counts = dict.fromkeys(GROUPS, 0)
    names = []
    for name, _ in program:
        counts[name] += 1
        names.append(f"{name}/collective/{counts[name]}")
    after: dict[str, set[str]] = {name: set() for name in names}
    for rank in range(4):
        own = [i for i, step in enumerate(program) if rank in GROUPS[step[0]].ranks and (rank, i) not in lost]
        for one, other in pairwise(own):
            after[names[one]].add(names[other])
    found: set[tuple[str, str | None]] = set()
    for name in names:
        todo = [name]
        while todo:
            for later in after[todo.pop()]:
                if (name, later) not in found:
                    found.add((name, later))
                    todo.append(later)
    return found


steps = st.tuples(st.sampled_from(list(GROUPS)), st.sets(st.integers(0, 3), max_size=2).map(frozenset))
programs = st.lists(steps, min_size=2, max_size=10)
losses = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8).map(frozenset)


@given(programs, losses)
def test_no_mismatch_follows_from_a_later_one_and_the_first_cause_is_the_first(
    program: list[Step], lost: frozenset[tuple[int, int]]
) -> None:
    findings, order = judged(program, lost), before(program, lost)
    assert all((one.key, one.caused_by) not in order for one in findings)
    told = [one.key for one in causes(findings)]
    assert not any((later, earlier) in order for i, earlier in enumerate(told) for later in told[i + 1 :])


@given(st.lists(st.tuples(st.sampled_from(list(GROUPS)), st.permutations(range(4))), max_size=12), st.data())
def test_ranks_that_are_out_of_step_have_an_order_too(
    program: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    """Each rank makes its calls in an order of its own."""
    found: list[Call] = []
    for rank in range(4):
        own = [name for name, _ in program if rank in GROUPS[name].ranks]
        counts = dict.fromkeys(GROUPS, 0)
        for record, name in enumerate(data.draw(st.permutations(own))):
            counts[name] += 1
            found.append(call(rank, counts[name], CallState.COMPLETED, group=name, record=record))
    instances = line_up(Evidence(groups=GROUPS, calls=found, ranks={}, window=2.0))
    order = positions(instances, set(instances))
    assert sorted(order.values()) == list(range(1, len(instances) + 1))
    assert positions(instances, set(list(instances)[:2])) == {key: order[key] for key in list(instances)[:2]}


def test_a_mismatch_of_two_groups_is_the_one_that_the_rank_met_first() -> None:
    """Rank 1 comes before rank 2, and has not differed: only rank 2's own calls show which came first."""
    first = judged([("b", frozenset({2})), ("c", frozenset({2}))])
    assert [(one.key, one.culprit_ranks) for one in causes(first)] == [("b/collective/1", (2,))]
    assert [(one.key, one.caused_by) for one in first if one.caused_by] == [("c/collective/1", "b/collective/1")]


def test_a_mismatch_across_ranks_is_ordered_by_the_collective_between() -> None:
    program = [("b", frozenset({3})), ("w", frozenset()), ("a", frozenset({0}))]
    assert [one.culprit_ranks for one in causes(judged(program))] == [(3,), (0,)]
    program = [("a", frozenset({0})), ("w", frozenset()), ("b", frozenset({3}))]
    assert [one.culprit_ranks for one in causes(judged(program))] == [(0,), (3,)]


@pytest.mark.parametrize("rank", [1, 2])
def test_of_two_ranks_without_a_majority_the_one_that_differed_before_explains_it(rank: int) -> None:
    found = judged([("w", frozenset({rank})), ("c", frozenset({rank}))])
    assert [(one.key, one.culprit_ranks) for one in causes(found)] == [("w/collective/1", (rank,))]
