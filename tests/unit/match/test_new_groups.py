"""Ranks that create process groups: left out, in another order, or with another meaning; and what is no fault."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.match import Call, CallState, Category, Finding, Group, NewGroup, Progress, Rank, Signature
from tests.support.evidence import judge
from tests.support.verdicts import causes

WORLD = Group("w", "0", "default_pg", (0, 1, 2, 3))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")
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
    more.setdefault("record", number)
    more.setdefault("age", 9.0 if state is OPEN else None)
    return Call(
        rank=rank,
        group="w",
        stream="group",
        sequence_id=number,
        signature=Signature("new_group", new_group=new),
        state=state,
        site=f"train.py:{number} setup",
        **more,
    )


def reduced(rank: int, number: int = 1, state: CallState = OPEN, group: str = "w") -> Call:
    age = 9.0 if state is OPEN else None
    return Call(
        rank=rank, group=group, stream="collective", sequence_id=number, record=50, signature=SUM, state=state, age=age
    )


def verdict(calls: list[Call], world: Group = WORLD, **enqueued: int) -> list[Finding]:
    """``enqueued``: of ranks (``r2=1``), collectives of the default group."""
    ranks = [
        Rank(rank, idle=9.0, progress={"w": Progress(enqueued.get(f"r{rank}", 0), 0)}, site="train.py:9 load")
        for rank in world.ranks
    ]
    return judge(calls, ranks, [world], world_size=len(world.ranks))


def test_a_rank_that_leaves_out_a_creation_is_named() -> None:
    (found,) = verdict([made(rank, 2) for rank in (0, 1, 3)])
    assert found.category is Category.MISSING_RANK
    assert found.culprit_ranks == (2,)
    assert found.waiting_ranks == (0, 1, 3)
    assert found.stream == "group"
    assert found.text.startswith("rank 2 did not join new_group number 2 (group tp (2), ranks 0-3)")


def test_a_rank_that_went_on_to_a_collective_instead_is_the_culprit() -> None:
    calls = [*(made(rank, 2) for rank in (0, 1, 3)), reduced(2)]
    (found,) = causes(verdict(calls, r2=1))
    assert found.culprit_ranks == (2,)
    assert "new_group number 2" in found.text
    assert "all_reduce number 1" in found.text


def test_no_rank_waits_for_one_that_is_no_member() -> None:
    calls = [made(rank, 2, ranks=(0, 1), state=DONE) for rank in (0, 1)]
    assert verdict(calls) == []
    calls = [made(0, 2, ranks=(0, 1))]
    (found,) = verdict(calls)
    assert found.culprit_ranks == (1,)


def test_with_a_barrier_after_the_creation_every_rank_is_waited_for() -> None:
    calls = [made(rank, 2, ranks=(0, 1), awaits_all=True) for rank in (0, 1, 3)]
    (found,) = verdict(calls)
    assert found.culprit_ranks == (2,)
    assert found.waiting_ranks == (0, 1, 3)


def test_a_rank_that_creates_groups_in_another_order_is_named() -> None:
    first, second = (0, 1, 2), (1, 2, 3)
    calls = [
        made(0, 1, "a", first),
        made(1, 1, "a", first),
        made(2, 1, "b", second),
        made(3, 2, "b", second),
    ]
    found, *rest = verdict(calls)
    assert found.category is Category.OP_MISMATCH
    assert found.field == "group"
    assert found.culprit_ranks == (2,)
    assert found.text.startswith("group differs in new_group number 1 of group default_pg")
    assert [one.caused_by for one in rest] == [found.key] * len(rest)


def test_a_rank_that_passed_a_number_votes_against_groups_of_which_it_would_be_a_member() -> None:
    calls = [made(0, 2, "a", (0, 1)), made(1, 2, "b", (1, 2)), made(2, 3, "b", (1, 2))]
    found = verdict(calls)[0]
    assert found.field == "group"
    assert found.culprit_ranks == (1,)


def test_two_ranks_of_two_have_no_majority() -> None:
    world = Group("w", "0", "default_pg", (0, 1))
    calls = [made(0, 1, "a", (0, 1)), made(1, 1, "b", (0, 1)), made(0, 2, "b", (0, 1), record=2)]
    found = verdict(calls, world)[0]
    assert found.culprit_ranks == (0, 1)
    assert "no majority" in found.text


def test_one_name_with_two_meanings_is_named_where_ranks_wait_for_the_next() -> None:
    """Rank 2 left out "tp": its "dp" got the name of the others' "tp", and they wait for it in their "dp"."""
    calls = [
        *(made(rank, 1, "tp", state=DONE) for rank in (0, 1, 3)),
        made(2, 1, "dp", state=DONE),
        *(made(rank, 2, "dp") for rank in (0, 1, 3)),
    ]
    found, *rest = verdict(calls)
    assert found.field == "group"
    assert found.culprit_ranks == (2,)
    assert found.values[2].startswith("dp")
    assert "one call fewer" in found.text
    assert all(one.caused_by == found.key for one in rest)


def test_swapped_descriptions_are_named_where_ranks_wait_in_a_group_of_that_name() -> None:
    group = Group("t", "1", "tp", (0, 1, 2, 3))
    calls = [made(rank, number, name, state=DONE) for rank in (0, 1, 3) for number, name in ((1, "tp"), (2, "dp"))]
    calls += [made(2, number, name, state=DONE) for number, name in ((1, "dp"), (2, "tp"))]
    calls += [reduced(rank, group="t") for rank in (0, 1, 3)]
    ranks = [Rank(rank, idle=9.0, progress={"t": Progress(int(rank != 2), 0)}) for rank in WORLD.ranks]
    found, *rest = judge(calls, ranks, [WORLD, group], world_size=4)
    assert found.field == "group"
    assert found.culprit_ranks == (2,)
    assert all(one.caused_by == found.key for one in rest)


def test_calls_that_do_not_fit_in_a_group_of_two_meanings_follow_from_its_creation() -> None:
    """Rank 2 creates "dp" first: its calls of "dp" meet the others' of "tp". No rank waits."""
    group = Group("t", "1", "tp", (0, 1, 2, 3))
    calls = [made(rank, number, name, state=DONE) for rank in (0, 1, 3) for number, name in ((1, "tp"), (2, "dp"))]
    calls += [made(2, number, name, state=DONE) for number, name in ((1, "dp"), (2, "tp"))]
    calls += [reduced(rank, group="t", state=DONE) for rank in (0, 1, 3)]
    larger = SUM._replace(input_sizes=((8,),), output_sizes=((8,),))
    calls.append(dataclasses.replace(reduced(2, group="t", state=DONE), signature=larger))
    ranks = [Rank(rank, idle=9.0, progress={"t": Progress(1, 1)}) for rank in WORLD.ranks]
    found, *rest = judge(calls, ranks, [WORLD, group], world_size=4)
    assert (found.field, found.culprit_ranks) == ("group", (2,))
    assert "one call" not in found.text
    assert [(one.category, one.caused_by) for one in rest] == [(Category.SIZE_MISMATCH, found.key)]


def test_calls_that_do_not_fit_in_a_group_that_ranks_only_describe_differently_are_a_fault_of_their_own() -> None:
    group = Group("t", "1", "tp", (0, 1, 2, 3))
    calls = [made(rank, 1, f"of rank {rank}", state=DONE) for rank in WORLD.ranks]
    calls += [reduced(rank, group="t", state=DONE) for rank in (0, 1, 3)]
    larger = SUM._replace(input_sizes=((8,),), output_sizes=((8,),))
    calls.append(dataclasses.replace(reduced(2, group="t", state=DONE), signature=larger))
    ranks = [Rank(rank, idle=9.0, progress={"t": Progress(1, 1)}) for rank in WORLD.ranks]
    (found,) = judge(calls, ranks, [WORLD, group], world_size=4)
    assert (found.category, found.culprit_ranks) == (Category.SIZE_MISMATCH, (2,))


@pytest.mark.parametrize("late", [1, 3])
def test_groups_without_a_common_member_may_be_late_under_one_number(late: int) -> None:
    calls = [made(rank, 1, "pair", (rank // 2 * 2, rank // 2 * 2 + 1)) for rank in WORLD.ranks if rank != late]
    (found,) = verdict(calls)
    assert (found.field, found.culprit_ranks) == (None, (late,))


@pytest.mark.parametrize("state", [DONE, OPEN])
def test_ranks_may_describe_a_group_differently(state: CallState) -> None:
    """Each by its own number, for example; a rank that waits in a later call waits for another reason."""
    calls = [made(rank, 1, f"of rank {rank}", state=DONE) for rank in WORLD.ranks]
    calls += [made(rank, 2, f"of rank {rank} too", state=state) for rank in (0, 1, 2)]
    found = verdict(calls)
    assert [one.culprit_ranks for one in found] == ([] if state is DONE else [(3,)])
    assert all(one.field is None for one in found)


def test_groups_without_a_common_member_may_have_one_number() -> None:
    """Each pair of ranks creates its own group only: no rank waits."""
    calls = [made(rank, 1, "pair", (rank // 2 * 2, rank // 2 * 2 + 1), state=DONE) for rank in WORLD.ranks]
    assert verdict(calls) == []


def test_members_that_have_all_come_may_take_long_to_connect() -> None:
    calls = [made(rank, 1, age=200.0) for rank in WORLD.ranks]
    assert verdict(calls) == []
    failed = [made(rank, 1, state=CallState.FAILED, age=300.0, duration=300.0, error="timeout") for rank in WORLD.ranks]
    (found,) = verdict(failed)
    assert found.category is Category.STALLED_COLLECTIVE
    assert "all members joined new_group number 1 (group tp (1), ranks 0-3)" in found.text


def test_a_creation_that_failed_and_was_caught_is_over() -> None:
    failed = [
        made(rank, 1, state=CallState.FAILED, age=30.0, duration=10.0, error="collective_failed")
        for rank in WORLD.ranks
    ]
    later = [
        Call(
            rank=rank, group="w", stream="collective", sequence_id=1, record=60, signature=SUM, state=DONE, age=5.0,
            duration=0.1,
        )
        for rank in WORLD.ranks
    ]  # fmt: skip
    ranks = [Rank(rank, idle=9.0, progress={"w": Progress(1, 1)}) for rank in WORLD.ranks]
    assert judge([*failed, *later], ranks, [WORLD], world_size=4) == []


def made_by_members(rank: int, name: str, ranks: tuple[int, ...], record: int, state: CallState = OPEN) -> Call:
    """A call of ``new_group(use_local_synchronization=True)``: the first of the new group itself."""
    call = made(rank, 1, "pair", ranks, state, record=record)
    new = NewGroup(name, "pair", ranks)
    return dataclasses.replace(call, group=name, signature=Signature("new_group", new_group=new))


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
    ranks = [Rank(rank, idle=9.0, progress={"w": Progress(0, 0)}) for rank in WORLD.ranks]
    assert judge(calls, ranks, [WORLD, *(pair(name, *own) for name, own in pairs.items())], world_size=4) == []


def test_a_member_that_leaves_out_a_group_of_its_members_is_named() -> None:
    """Rank 2 left out the group that it and rank 1 create; rank 0 waits for rank 1."""
    calls = [
        made_by_members(1, "bc", (1, 2), 1),
        made_by_members(0, "ab", (0, 1), 1),
        made_by_members(2, "cd", (2, 3), 1, DONE),
        made_by_members(3, "cd", (2, 3), 1, DONE),
    ]
    ranks = [Rank(rank, idle=9.0, progress={"w": Progress(0, 0)}) for rank in WORLD.ranks]
    groups = [WORLD, pair("ab", 0, 1), pair("bc", 1, 2), pair("cd", 2, 3)]
    found, *rest = judge(calls, ranks, groups, world_size=4)
    assert (found.category, found.culprit_ranks, found.waiting_ranks) == (Category.MISSING_RANK, (2,), (1,))
    assert found.text.startswith("rank 2 did not join new_group number 1 (group pair (bc), ranks 1, 2)")
    assert [one.caused_by for one in rest] == [found.key] * len(rest)


def test_members_that_name_their_group_differently_wait_for_each_other() -> None:
    """c10d names it by the number of groups that each rank has created."""
    calls = [made_by_members(0, "x", (0, 1), 1), made_by_members(1, "y", (0, 1), 1)]
    ranks = [Rank(rank, idle=9.0, progress={"w": Progress(0, 0)}) for rank in WORLD.ranks]
    (found,) = causes(judge(calls, ranks, [WORLD, pair("x", 0, 1), pair("y", 0, 1)], world_size=4))
    assert (found.category, found.culprit_ranks) == (Category.DEADLOCK, (0, 1))


def older(calls: list[Call], rank: int) -> list[Finding]:
    """The verdict if that rank has a recorder that records no creations, such as PyTorch's."""
    ranks = [
        Rank(r, idle=9.0, progress={"w": Progress(int(any(c.rank == r and c.stream != "group" for c in calls)), 0)})
        for r in WORLD.ranks
    ]
    ranks[rank].records_creations = False
    return judge(calls, ranks, [WORLD], world_size=4)


def test_a_rank_that_records_no_creations_is_not_said_to_have_left_one_out() -> None:
    calls = [made(rank, 2) for rank in (0, 1, 3)]
    assert older(calls, 2) == []
    (found,) = older([made(0, 2), made(1, 2)], 2)  # rank 3 does record them
    assert found.culprit_ranks == (3,)
    failed = [made(rank, 2, state=CallState.FAILED, age=30.0, duration=30.0, error="timeout") for rank in (0, 1, 3)]
    (found,) = older(failed, 2)
    assert (found.culprit_ranks, found.waiting_ranks) == ((), (0, 1, 3))
    assert "it is not known whether rank 2 joined it" in found.text


def test_a_rank_that_records_no_creations_and_waits_elsewhere_is_named() -> None:
    (found,) = causes(older([*(made(rank, 2) for rank in (0, 1, 3)), reduced(2)], 2))
    assert found.culprit_ranks == (2,)
    assert "all_reduce number 1" in found.text


GROUPS = ((0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3))


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
    for rank in WORLD.ranks:
        for number, (ranks, name) in enumerate(program[: reached[rank]], 1):
            if rank in ranks:
                last = number == min(reached[rank], len(program))
                calls.append(made(rank, number, name, ranks, OPEN if last else DONE, age=0.5 if last else None))
    seed.shuffle(calls)
    assert verdict(calls) == []


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
                for rank in ranks:
                    position[rank] = number + 1
                moved = True
        for rank in WORLD.ranks:
            while position[rank] < min(len(program), stopped.get(rank, 99)) and rank not in program[position[rank]]:
                position[rank] += 1
                moved = True
    for rank in WORLD.ranks:
        for number, ranks in enumerate(program[: position[rank]]):
            if rank in ranks:
                calls.append(made(rank, number + 1, "g", ranks, DONE))
        if rank != culprit and position[rank] < len(program):
            calls.append(made(rank, position[rank] + 1, "g", program[position[rank]], OPEN))
    waiting = [call for call in calls if call.state is OPEN]
    found = verdict(calls)
    assert {rank for one in causes(found) for rank in one.culprit_ranks} == ({culprit} if waiting else set())
