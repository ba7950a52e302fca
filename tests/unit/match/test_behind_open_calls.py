"""Collectives that all members joined, while one of them still has an earlier call open."""

from __future__ import annotations

import dataclasses

import pytest

from otel_fr.match import Call, CallState, Category, Finding, Group, Progress, Rank, Signature
from tests.support.evidence import judge
from tests.support.verdicts import causes

WORLD = Group("w", "0", "default_pg", (0, 1, 2))
SHARD = Group("t", "1", "tp", (0, 1))
PAIR = Group("d", "2", "dp", (0, 2))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")
AGES = pytest.mark.parametrize("age", [9.0, None], ids=["ages", "no ages"])


def call(rank: int, group: Group, seq: int, record: int, age: float | None) -> Call:
    return Call(
        rank=rank,
        group=group.id,
        stream="collective",
        sequence_id=seq,
        record=record,
        signature=SUM,
        state=CallState.IN_FLIGHT,
        age=age,
    )


def judge_waiting(calls: list[Call], enqueued: dict[int, dict[str, int]], age: float | None) -> list[Finding]:
    def completed(rank: int, group: str, count: int) -> int:
        return min([count, *(c.sequence_id - 1 for c in calls if (c.rank, c.group) == (rank, group))])

    ranks = [
        Rank(rank, progress={g: Progress(count, completed(rank, g, count)) for g, count in counts.items()}, idle=age)
        for rank, counts in enqueued.items()
    ]
    return judge(calls, ranks, (WORLD, SHARD, PAIR), 3)


@AGES
def test_a_rank_that_left_out_a_collective_and_went_to_the_next_is_named(age: float | None) -> None:
    found = judge_waiting(
        [
            call(0, SHARD, 5, 10, age),
            *(call(rank, WORLD, 3, 11, age) for rank in WORLD.ranks),
        ],
        {0: {"t": 5, "w": 3}, 1: {"t": 4, "w": 3}, 2: {"w": 3}},
        age,
    )
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (1,))
    assert (cause.group, cause.sequence_id, cause.waiting_ranks) == (SHARD, 5, (0,))
    assert found == [cause]


@AGES
def test_what_was_issued_behind_a_collective_that_lacks_a_rank_is_no_fault_of_its_own(age: float | None) -> None:
    found = judge_waiting(
        [call(0, SHARD, 5, 10, age), call(0, PAIR, 2, 11, age), call(2, PAIR, 2, 11, age)],
        {0: {"t": 5, "d": 2, "w": 0}, 1: {"t": 4, "w": 0}, 2: {"d": 2, "w": 0}},
        age,
    )
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.group) == (Category.MISSING_RANK, (1,), SHARD)
    assert found == [cause]


def test_a_receive_posted_early_names_no_culprit_when_what_all_joined_stands_still() -> None:
    receive = Signature("recv", ((4,),), ((4,),), ("Float",), ("Float",), peer=1, tag=0)
    found = judge_waiting(
        [
            Call(
                rank=0,
                group="w",
                stream="p2p",
                sequence_id=1,
                record=10,
                signature=receive,
                state=CallState.IN_FLIGHT,
                age=9.0,
            ),
            *(call(rank, WORLD, 3, 11, 9.0) for rank in WORLD.ranks),
        ],
        {rank: {"w": 3} for rank in WORLD.ranks},
        9.0,
    )
    assert [f.category for f in found if f.caused_by is None] == [Category.STALLED_COLLECTIVE]


def test_two_collectives_that_two_ranks_issued_in_opposite_orders_are_a_deadlock() -> None:
    calls = [call(0, SHARD, 5, 10, 9.0), call(0, WORLD, 3, 11, 9.0), call(1, WORLD, 3, 10, 9.0)]
    calls += [call(1, SHARD, 5, 11, 9.0), call(2, WORLD, 3, 10, 9.0)]
    found = judge_waiting(calls, {0: {"t": 5, "w": 3}, 1: {"t": 5, "w": 3}, 2: {"w": 3}}, 9.0)
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks) == (Category.DEADLOCK, (0, 1))
    assert "rank 0 enqueued all_reduce number 5 of group tp (1) before all_reduce number 3" in cause.summary


@AGES
@pytest.mark.parametrize(
    ("waiting", "accused"), [((0,), [(0,)]), ((0, 1), [(0,), (2,)])], ids=["alone", "with another"]
)
def test_a_rank_out_of_step_that_waits_alone_for_most_of_a_group_makes_none_of_them_a_culprit(
    waiting: tuple[int, ...], accused: list[tuple[int, ...]], age: float | None
) -> None:
    """Rank 0 left out a call of everybody's: it brings another size there, and comes too early to its next call."""
    world, row = Group("w", "0", "default_pg", (0, 1, 2, 3)), Group("t", "1", "tp", (0, 1, 2))
    other = SUM._replace(input_sizes=((8,),), output_sizes=((8,),))
    calls = [
        dataclasses.replace(call(rank, world, 3, 10, None), state=CallState.COMPLETED, signature=SUM if rank else other)
        for rank in world.ranks
    ]
    calls += [call(rank, row, 5, 11, age) for rank in waiting]
    ranks = {
        rank: Rank(rank, progress={"w": Progress(3, 3), "t": Progress(5 if rank in waiting else 4, 4)}, idle=age)
        for rank in world.ranks
    }
    found = judge(calls, ranks.values(), (world, row), 4)
    assert [f.culprit_ranks for f in causes(found)] == accused
    assert causes(found)[0].category is Category.SIZE_MISMATCH


@pytest.mark.parametrize(("issued", "accused"), [(4, []), (5, [(1,)])], ids=["most have not come to it", "most have"])
def test_a_rank_that_is_ahead_of_most_others_does_not_show_that_its_peer_left_a_call_out(
    issued: int, accused: list[tuple[int, ...]]
) -> None:
    """Rank 0 left out a call of everybody's and waits in a later one before the next; or rank 1 left that one out."""
    rows = [Group(f"t{n}", str(n + 1), "tp", (2 * n, 2 * n + 1)) for n in range(3)]
    world = Group("w", "0", "default_pg", tuple(range(6)))
    calls = [call(0, rows[0], 5, 10, None), *(call(rank, world, 3, 11, None) for rank in world.ranks)]
    ranks = {
        rank: Rank(
            rank,
            progress={
                "w": Progress(3, 2),
                f"t{rank // 2}": Progress({0: 5, 1: 4}.get(rank, issued), 4 if rank < 2 else issued),
            },
        )
        for rank in world.ranks
    }
    found = judge(calls, ranks.values(), (world, *rows), 6)
    assert [f.culprit_ranks for f in found if f.caused_by is None] == accused
