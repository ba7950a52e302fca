"""Ranks that create process groups: left out, in another order, or with another meaning; and what is no fault."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import Call, CallState, Category, Finding, Group, NewGroup, Signature
from tests.support.evidence import LARGE, call, judge, rank, verdict, world
from tests.support.verdicts import causes

WORLD = world(4)
DONE, OPEN = CallState.COMPLETED, CallState.IN_FLIGHT


def made(
    rank: int,
    number: int,
    description: str = "tp",
    ranks: tuple[int, ...] = (0, 1, 2, 3),
    state: CallState = OPEN,
    **more: Any,
) -> Call:
    """A call of ``new_group``; c10d names the groups by their numbers."""
    awaits_all = more.pop("awaits_all", False)
    new = NewGroup(str(number), description, ranks, awaits_all)
    return call(rank, number, state, Signature("new_group", new_group=new), stream="group", **more)


def found_of(calls: list[Call], group: Group = WORLD, **enqueued: int) -> list[Finding]:
    """``enqueued``: of ranks (``r2=1``), collectives of the default group."""
    ranks = [rank(r, enqueued.get(f"r{r}", 0), 0) for r in group.ranks]
    return judge(calls, ranks, [group], world_size=len(group.ranks))


def test_no_rank_waits_for_one_that_is_no_member() -> None:
    calls = [made(rank, 2, ranks=(0, 1), state=DONE) for rank in (0, 1)]
    assert found_of(calls) == []
    calls = [made(0, 2, ranks=(0, 1))]
    (found,) = found_of(calls)
    assert found.culprit_ranks == (1,)


def test_with_a_barrier_after_the_creation_every_rank_is_waited_for() -> None:
    calls = [made(rank, 2, ranks=(0, 1), awaits_all=True) for rank in (0, 1, 3)]
    (found,) = found_of(calls)
    assert found.culprit_ranks == (2,)
    assert found.waiting_ranks == (0, 1, 3)


def test_a_rank_that_passed_a_number_votes_against_groups_of_which_it_would_be_a_member() -> None:
    calls = [made(0, 2, "a", (0, 1)), made(1, 2, "b", (1, 2)), made(2, 3, "b", (1, 2))]
    found = found_of(calls)[0]
    assert found.field == "group"
    assert found.culprit_ranks == (1,)


def test_two_ranks_of_two_have_no_majority() -> None:
    calls = [made(0, 1, "a", (0, 1)), made(1, 1, "b", (0, 1)), made(0, 2, "b", (0, 1), record=2)]
    found = found_of(calls, world(2))[0]
    assert found.culprit_ranks == (0, 1)


def test_swapped_descriptions_are_named_where_ranks_wait_in_a_group_of_that_name() -> None:
    group = Group("t", "1", "tp", (0, 1, 2, 3))
    calls = [made(rank, number, name, state=DONE) for rank in (0, 1, 3) for number, name in ((1, "tp"), (2, "dp"))]
    calls += [made(2, number, name, state=DONE) for number, name in ((1, "dp"), (2, "tp"))]
    calls += [call(rank, 1, group="t", record=50) for rank in (0, 1, 3)]
    ranks = [rank(r, counts={"t": (int(r != 2), 0)}) for r in WORLD.ranks]
    found, *rest = judge(calls, ranks, [WORLD, group], world_size=4)
    assert found.field == "group"
    assert found.culprit_ranks == (2,)
    assert all(one.caused_by == found.key for one in rest)


def test_calls_that_do_not_fit_in_a_group_of_two_meanings_follow_from_its_creation() -> None:
    """Rank 2 creates "dp" first: its calls of "dp" meet the others' of "tp". No rank waits."""
    group = Group("t", "1", "tp", (0, 1, 2, 3))
    calls = [made(rank, number, name, state=DONE) for rank in (0, 1, 3) for number, name in ((1, "tp"), (2, "dp"))]
    calls += [made(2, number, name, state=DONE) for number, name in ((1, "dp"), (2, "tp"))]
    calls += [call(rank, 1, DONE, group="t", record=50) for rank in (0, 1, 3)]
    calls.append(call(2, 1, DONE, LARGE, group="t", record=50))
    ranks = [rank(r, counts={"t": (1, 1)}) for r in WORLD.ranks]
    found, *rest = judge(calls, ranks, [WORLD, group], world_size=4)
    assert (found.field, found.culprit_ranks) == ("group", (2,))
    assert [(one.category, one.caused_by) for one in rest] == [(Category.SIZE_MISMATCH, found.key)]


def test_calls_that_do_not_fit_in_a_group_that_ranks_only_describe_differently_are_a_fault_of_their_own() -> None:
    group = Group("t", "1", "tp", (0, 1, 2, 3))
    calls = [made(rank, 1, f"of rank {rank}", state=DONE) for rank in WORLD.ranks]
    calls += [call(rank, 1, DONE, group="t", record=50) for rank in (0, 1, 3)]
    calls.append(call(2, 1, DONE, LARGE, group="t", record=50))
    ranks = [rank(r, counts={"t": (1, 1)}) for r in WORLD.ranks]
    (found,) = judge(calls, ranks, [WORLD, group], world_size=4)
    assert (found.category, found.culprit_ranks) == (Category.SIZE_MISMATCH, (2,))


@pytest.mark.parametrize("late", [1, 3])
def test_groups_without_a_common_member_may_be_late_under_one_number(late: int) -> None:
    calls = [made(rank, 1, "pair", (rank // 2 * 2, rank // 2 * 2 + 1)) for rank in WORLD.ranks if rank != late]
    (found,) = found_of(calls)
    assert (found.field, found.culprit_ranks) == (None, (late,))


@pytest.mark.parametrize("state", [DONE, OPEN])
def test_ranks_may_describe_a_group_differently(state: CallState) -> None:
    """Each by its own number, for example; a rank that waits in a later call waits for another reason."""
    calls = [made(rank, 1, f"of rank {rank}", state=DONE) for rank in WORLD.ranks]
    calls += [made(rank, 2, f"of rank {rank} too", state=state) for rank in (0, 1, 2)]
    found = found_of(calls)
    assert [one.culprit_ranks for one in found] == ([] if state is DONE else [(3,)])
    assert all(one.field is None for one in found)


def test_groups_without_a_common_member_may_have_one_number() -> None:
    """Each pair of ranks creates its own group only: no rank waits."""
    calls = [made(rank, 1, "pair", (rank // 2 * 2, rank // 2 * 2 + 1), state=DONE) for rank in WORLD.ranks]
    assert found_of(calls) == []


def test_groups_without_a_common_member_may_meet_as_they_connect() -> None:
    """They look for each other in the job's store under one name: rank 0 has connected to rank 3, and rank 1 waits."""
    states = {1: OPEN}
    calls = [made(r, 1, "pair", (r // 2 * 2, r // 2 * 2 + 1), states.get(r, DONE)) for r in WORLD.ranks]
    calls += [call(r, 1, record=50) for r in (0, 3)]
    found, *rest = found_of(calls, r0=1, r3=1)
    assert (found.field, found.culprit_ranks) == ("group", (0, 1, 2, 3))
    assert [one.caused_by for one in rest] == [found.key] * len(rest)


def test_members_that_have_all_come_may_take_long_to_connect() -> None:
    calls = [made(rank, 1, age=200.0) for rank in WORLD.ranks]
    assert found_of(calls) == []


def test_a_creation_that_failed_and_was_caught_is_over() -> None:
    failed = [
        made(rank, 1, state=CallState.FAILED, age=30.0, duration=10.0, error="collective_failed")
        for rank in WORLD.ranks
    ]
    later = [call(rank, 1, DONE, record=60, age=5.0, duration=0.1) for rank in WORLD.ranks]
    assert verdict([*failed, *later], [rank(r, 1) for r in WORLD.ranks], size=4) == []


def made_by_members(rank: int, name: str, ranks: tuple[int, ...], record: int, state: CallState = OPEN) -> Call:
    """A call of ``new_group(use_local_synchronization=True)``: the first of the new group itself."""
    new = Signature("new_group", new_group=NewGroup(name, "pair", ranks))
    return call(rank, 1, state, new, group=name, stream="group", record=record)


def pair(name: str, *ranks: int) -> Group:
    return Group(name, name, "pair", ranks)


def test_groups_that_their_members_create_alone_need_no_common_order() -> None:
    pairs = {"ab": (0, 1), "bc": (1, 2), "cd": (2, 3)}
    orders = {0: ["ab"], 1: ["bc", "ab"], 2: ["bc", "cd"], 3: ["cd"]}
    calls = [
        made_by_members(rank, name, pairs[name], record, DONE)
        for rank, names in orders.items()
        for record, name in enumerate(names)
    ]
    ranks = [rank(r, 0) for r in WORLD.ranks]
    assert judge(calls, ranks, [WORLD, *(pair(name, *own) for name, own in pairs.items())], world_size=4) == []


def test_a_member_that_leaves_out_a_group_of_its_members_is_named() -> None:
    """Rank 2 left out the group that it and rank 1 create; rank 0 waits for rank 1."""
    calls = [
        made_by_members(1, "bc", (1, 2), 1),
        made_by_members(0, "ab", (0, 1), 1),
        made_by_members(2, "cd", (2, 3), 1, DONE),
        made_by_members(3, "cd", (2, 3), 1, DONE),
    ]
    ranks = [rank(r, 0) for r in WORLD.ranks]
    groups = [WORLD, pair("ab", 0, 1), pair("bc", 1, 2), pair("cd", 2, 3)]
    found, *rest = judge(calls, ranks, groups, world_size=4)
    assert (found.category, found.culprit_ranks, found.waiting_ranks) == (Category.MISSING_RANK, (2,), (1,))
    assert [one.caused_by for one in rest] == [found.key] * len(rest)


def test_members_that_name_their_group_differently_wait_for_each_other() -> None:
    """c10d names it by the number of groups that each rank has created."""
    calls = [made_by_members(0, "x", (0, 1), 1), made_by_members(1, "y", (0, 1), 1)]
    ranks = [rank(r, 0) for r in WORLD.ranks]
    (found,) = causes(judge(calls, ranks, [WORLD, pair("x", 0, 1), pair("y", 0, 1)], world_size=4))
    assert (found.category, found.culprit_ranks) == (Category.DEADLOCK, (0, 1))


@pytest.mark.parametrize(
    ("members", "callers", "named"),
    [
        ((0, 1), (0,), (1,)),  # as ranks 2 and 3, which are no members, rank 1 went on
        ((0, 1), (1,), (0,)),
        ((0, 1, 2, 3), (0, 1), (2, 3)),
        ((0, 1, 2, 3), (0, 1, 3), (2,)),
        ((0, 1, 2, 3), (2,), (2,)),  # most ranks do not create it
    ],
)
def test_a_member_that_leaves_out_a_creation_and_waits_in_a_collective_is_named(
    members: tuple[int, ...], callers: tuple[int, ...], named: tuple[int, ...]
) -> None:
    others = [own for own in WORLD.ranks if own not in callers]
    calls = [made(own, 1, ranks=members) for own in callers] + [call(own, 1, record=50) for own in others]
    ranks = [rank(own, int(own in others), 0) for own in WORLD.ranks]
    (found,) = causes(judge(calls, ranks, [WORLD], world_size=4))
    assert found.culprit_ranks == named


@pytest.mark.parametrize("pairs", [((0, 1), (2, 3)), ((0, 2), (1, 3))])
@pytest.mark.parametrize("first", [1, 3])
def test_ranks_that_leave_out_creations_of_several_groups_are_named_together(
    pairs: tuple[tuple[int, int], ...], first: int
) -> None:
    """As ``init_device_mesh`` creates the groups of a dimension: one after the other, each with other members."""
    calls = [made(pair[0], number, ranks=pair) for number, pair in enumerate(pairs, first)]
    absent = tuple(sorted(pair[1] for pair in pairs))
    calls += [call(own, 1, record=50) for own in absent]
    (found,) = causes(verdict(calls, [rank(own, int(own in absent), 0) for own in WORLD.ranks], size=4))
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, absent)
    assert found.rule == "creation_left_out_in_cycle"


def older(calls: list[Call], number: int) -> list[Finding]:
    """The verdict if that rank has a recorder that records no creations, such as PyTorch's."""
    ranks = [rank(r, int(any(c.rank == r and c.stream != "group" for c in calls)), 0) for r in WORLD.ranks]
    ranks[number].records_creations = False
    return verdict(calls, ranks, size=4)


def test_a_rank_that_records_no_creations_is_not_said_to_have_left_one_out() -> None:
    calls = [made(rank, 2) for rank in (0, 1, 3)]
    assert older(calls, 2) == []
    (found,) = older([made(0, 2), made(1, 2)], 2)  # rank 3 does record them
    assert found.culprit_ranks == (3,)


GROUPS = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3))


def test_a_rank_that_records_no_creations_and_waits_elsewhere_is_named() -> None:
    (found,) = causes(older([*(made(rank, 2) for rank in (0, 1, 3)), call(2, 1, record=50)], 2))
    assert found.culprit_ranks == (2,)


@given(
    program=st.lists(st.tuples(st.sampled_from(GROUPS), st.sampled_from(["", "tp", "dp"])), min_size=1, max_size=8),
    reached=st.tuples(*[st.integers(0, 8)] * 4),
    seed=st.randoms(use_true_random=False),
)
def test_ranks_that_create_the_same_groups_are_no_fault(
    program: list[tuple[tuple[int, ...], str]], reached: tuple[int, ...], seed: Any
) -> None:
    """However far each of them came: no creation disagrees, and none in which no rank has waited long is a fault."""
    calls = []
    for own in WORLD.ranks:
        for number, (ranks, name) in enumerate(program[: reached[own]], 1):
            if own in ranks:
                last = number == min(reached[own], len(program))
                calls.append(made(own, number, name, ranks, OPEN if last else DONE, age=0.5 if last else None))
    seed.shuffle(calls)
    assert found_of(calls) == []


@given(
    program=st.lists(st.sampled_from(GROUPS), min_size=2, max_size=6),
    culprit=st.integers(0, 3),
    at=st.integers(0, 5),
)
def test_a_rank_that_stops_before_a_creation_is_the_only_culprit(
    program: list[tuple[int, ...]], culprit: int, at: int
) -> None:
    at %= len(program)
    calls, stopped = [], {culprit: at}
    position = dict.fromkeys(WORLD.ranks, 0)
    moved = True
    while moved:
        moved = False
        for number, ranks in enumerate(program):
            ready = [r for r in ranks if position[r] == number and stopped.get(r, 99) > number]
            if len(ready) == len(ranks):
                for own in ranks:
                    position[own] = number + 1
                moved = True
        for own in WORLD.ranks:
            while position[own] < min(len(program), stopped.get(own, 99)) and own not in program[position[own]]:
                position[own] += 1
                moved = True
    for own in WORLD.ranks:
        for number, ranks in enumerate(program[: position[own]]):
            if own in ranks:
                calls.append(made(own, number + 1, "g", ranks, DONE))
        if own != culprit and position[own] < len(program):
            calls.append(made(own, position[own] + 1, "g", program[position[own]], OPEN))
    waiting = [call for call in calls if call.state is OPEN]
    found = found_of(calls)
    assert {own for one in causes(found) for own in one.culprit_ranks} == ({culprit} if waiting else set())
