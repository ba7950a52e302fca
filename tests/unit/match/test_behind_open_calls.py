"""Collectives that all members joined, while one of them still has an earlier call open."""

from __future__ import annotations

import pytest

from otel_fr.match import Call, CallState, Category, Finding, Group
from tests.support.evidence import LARGE, SUM, WORLD, blamed, call, message, rank, verdict
from tests.support.verdicts import causes

SHARD = Group("t", "1", "tp", (0, 1))
PAIR = Group("d", "2", "dp", (0, 2))
AGES = pytest.mark.parametrize("age", [9.0, None], ids=["ages", "no ages"])


def judge_waiting(calls: list[Call], enqueued: dict[int, dict[str, int]], age: float | None) -> list[Finding]:
    ranks = [rank(r, counts={g: (n, n) for g, n in own.items()}, idle=age) for r, own in enqueued.items()]
    return verdict(calls, ranks, SHARD, PAIR)


@AGES
def test_a_rank_that_left_out_a_collective_and_went_to_the_next_is_named(age: float | None) -> None:
    found = judge_waiting(
        [
            call(0, 5, group=SHARD, record=10, age=age),
            *(call(rank, 3, group=WORLD, record=11, age=age) for rank in WORLD.ranks),
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
        [
            call(0, 5, group=SHARD, record=10, age=age),
            call(0, 2, group=PAIR, record=11, age=age),
            call(2, 2, group=PAIR, record=11, age=age),
        ],
        {0: {"t": 5, "d": 2, "w": 0}, 1: {"t": 4, "w": 0}, 2: {"d": 2, "w": 0}},
        age,
    )
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.group) == (Category.MISSING_RANK, (1,), SHARD)
    assert found == [cause]


def test_a_receive_posted_early_names_no_culprit_when_what_all_joined_stands_still() -> None:
    found = judge_waiting(
        [
            message(0, "recv", 1, record=10),
            *(call(rank, 3, group=WORLD, record=11, age=9.0) for rank in WORLD.ranks),
        ],
        {rank: {"w": 3} for rank in WORLD.ranks},
        9.0,
    )
    assert [f.category for f in found if f.caused_by is None] == [Category.STALLED_COLLECTIVE]


@AGES
@pytest.mark.parametrize(
    ("waiting", "accused"), [((0,), [(0,)]), ((0, 1), [(0,), (2,)])], ids=["alone", "with another"]
)
def test_a_rank_out_of_step_that_waits_alone_for_most_of_a_group_makes_none_of_them_a_culprit(
    waiting: tuple[int, ...], accused: list[tuple[int, ...]], age: float | None
) -> None:
    """Rank 0 left out a call of everybody's: it brings another size there, and comes too early to its next call."""
    row = Group("t", "1", "tp", (0, 1, 2))
    calls = [call(r, 3, CallState.COMPLETED, SUM if r else LARGE, record=10) for r in range(4)]
    calls += [call(r, 5, group=row, record=11, age=age) for r in waiting]
    ranks = [rank(r, 3, counts={"t": (5 if r in waiting else 4, 4)}, idle=age) for r in range(4)]
    found = blamed(calls, ranks, row, size=4)
    assert [culprits for _, culprits in found] == accused
    assert found[0][0] is Category.SIZE_MISMATCH


@pytest.mark.parametrize(("issued", "accused"), [(4, []), (5, [(1,)])], ids=["most have not come to it", "most have"])
def test_a_rank_that_is_ahead_of_most_others_does_not_show_that_its_peer_left_a_call_out(
    issued: int, accused: list[tuple[int, ...]]
) -> None:
    """Rank 0 left out a call of everybody's and waits in a later one before the next; or rank 1 left that one out."""
    rows = [Group(f"t{n}", str(n + 1), "tp", (2 * n, 2 * n + 1)) for n in range(3)]
    calls = [call(0, 5, group=rows[0], record=10, age=None), *(call(r, 3, record=11, age=None) for r in range(6))]
    counts = [(5, 4), (4, 4), *[(issued, issued)] * 4]
    ranks = [rank(r, 3, counts={f"t{r // 2}": counts[r]}, idle=None) for r in range(6)]
    assert [culprits for _, culprits in blamed(calls, ranks, *rows, size=6)] == accused
