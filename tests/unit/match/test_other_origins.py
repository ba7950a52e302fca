"""A rank without evidence is named only if all other evidence fits a fault that began at it."""

from __future__ import annotations

from functools import partial

import pytest

from otel_fr.match import (
    Call,
    Case,
    Category,
    Ending,
    Evidence,
    Finding,
    Group,
    Rank,
    Signature,
    suspects,
)
from tests.support import evidence
from tests.support.evidence import WINDOW, judge, world
from tests.support.verdicts import causes

PAIRS = {
    "tp 0": Group("tp 0", "1", "tp", (0, 1)),
    "tp 1": Group("tp 1", "2", "tp", (2, 3)),
    "dp 0": Group("dp 0", "3", "dp", (0, 2)),
    "dp 1": Group("dp 1", "4", "dp", (1, 3)),
}
call, rank = partial(evidence.call, age=None), partial(evidence.rank, idle=None)
"""Files without times."""
UNHEARD = Rank(3, ending=Ending.UNKNOWN, complete=False)


def pairs(calls: list[Call], ranks: list[Rank]) -> tuple[list[Finding], list[tuple[int, ...]]]:
    """What is found, and the suspects otherwise."""
    ranks = [*ranks, UNHEARD]
    case = Case(Evidence(groups=PAIRS, calls=calls, ranks={r.rank: r for r in ranks}, window=WINDOW, world_size=4))
    return judge(calls, ranks, PAIRS.values(), 4), [suspect.ranks for suspect in suspects(case)]


def test_a_call_that_others_completed_may_have_begun_it() -> None:
    """Rank 0's device is stuck in number 10. Rank 1 completed it and would next wait for rank 3."""
    calls = [
        *(call(0, number, group="tp 0", record=number) for number in (10, 11)),
        call(1, 11, group="tp 0", record=11),
        *(call(r, 5, group="dp 1" if r else "dp 0", record=12) for r in (0, 1)),
        call(2, 5, group="dp 0", record=12),
    ]
    ranks = [
        rank(0, counts={"tp 0": (11, 9), "dp 0": (5, 4)}),
        rank(1, counts={"tp 0": (11, 10), "dp 1": (5, 4)}),
        rank(2, counts={"tp 1": (11, 11), "dp 0": (5, 4)}),
    ]
    found, nearest = pairs(calls, ranks)
    assert found == []
    assert nearest[0] == (0,)


def test_it_may_wait_for_a_culprit_with_which_it_shares_a_group() -> None:
    calls = [call(0, 11, group="tp 0", record=11), call(2, 11, group="tp 1", record=11)]
    ranks = [
        rank(0, counts={"tp 0": (11, 10), "dp 0": (4, 4)}),
        rank(1, counts={"tp 0": (10, 10), "dp 1": (4, 4)}, ending=Ending.KILLED, signal=9),
        rank(2, counts={"tp 1": (11, 10), "dp 0": (4, 4)}),
    ]
    assert [found.culprit_ranks for found in causes(pairs(calls, ranks)[0])] == [(1,)]


def test_a_call_that_all_joined_and_nothing_before_it_blocks_may_have_begun_it() -> None:
    calls = [*(call(r, 11, group="tp 0", record=11) for r in (0, 1)), call(1, 5, group="dp 1", record=12)]
    ranks = [
        rank(0, counts={"tp 0": (11, 10), "dp 0": (4, 4)}),
        rank(1, counts={"tp 0": (11, 10), "dp 1": (5, 4)}),
        rank(2, counts={"tp 1": (11, 11), "dp 0": (4, 4)}),
    ]
    assert pairs(calls, ranks)[0] == []


def test_what_all_joined_behind_the_wait_for_it_shows_no_other_origin() -> None:
    calls = [call(1, 5, group="dp 1", record=10), *(call(r, 11, group="tp 0", record=11) for r in (0, 1))]
    ranks = [
        rank(0, counts={"tp 0": (11, 10), "dp 0": (5, 5)}),
        rank(1, counts={"tp 0": (11, 10), "dp 1": (5, 4)}),
        rank(2, counts={"tp 1": (11, 11), "dp 0": (5, 5)}),
    ]
    (cause,) = causes(pairs(calls, ranks)[0])
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (3,))


def test_a_rank_that_left_out_a_call_may_have_begun_it() -> None:
    """Rank 0 made fewer calls of its pair than rank 1 before the same call of all."""
    calls = [call(r, 6, record=20) for r in (0, 1, 2)]
    ranks = [
        rank(0, counts={"tp 0": (9, 9), "dp 0": (4, 4), "w": (6, 5)}),
        rank(1, counts={"tp 0": (10, 10), "dp 1": (4, 4), "w": (6, 5)}),
        rank(2, counts={"tp 1": (10, 10), "dp 0": (4, 4), "w": (6, 5)}),
    ]
    groups = [*PAIRS.values(), world(4)]
    assert all(3 not in finding.culprit_ranks for finding in judge(calls, [*ranks, UNHEARD], groups, 4))


def test_a_rank_in_no_call_of_which_it_is_not_known_how_far_it_came_may_have_begun_it() -> None:
    """Files that hold only calls in flight, without counts."""
    ranks = [rank(r, 6, 5, complete=False) for r in (0, 1)]
    stopped = rank(2, counts={"w": (None, None)}, complete=False)
    calls = [call(r, 6, record=20) for r in (0, 1)]
    assert judge(calls, [*ranks, stopped, UNHEARD], [world(4)], 4) == []
    calls.append(call(2, 6, record=20))
    (cause,) = causes(judge(calls, [*ranks, rank(2, 6, 5), UNHEARD], [world(4)], 4))
    assert cause.culprit_ranks == (3,)


@pytest.mark.parametrize(
    ("peer", "record", "named"),
    [(0, 11, ()), (0, 13, (3,)), (3, 11, (3,))],
    ids=["before the wait", "behind the wait", "with the rank itself"],
)
def test_a_message_in_flight_whose_other_end_is_not_shown_may_have_begun_it(
    peer: int, record: int, named: tuple[int, ...]
) -> None:
    """Rank 0 may have completed it, and the device of rank 1 not."""
    half = Signature("recv", (), ((4,),), (), ("Float",), peer=peer, tag=0, any_source=True)
    calls = [
        call(1, 5, group="dp 1", record=12),
        call(1, 7, signature=half, group="tp 0", stream="p2p", record=record),
        *(call(r, 11, group="tp 1" if r else "tp 0", record=13) for r in (0, 2)),
    ]
    ranks = [
        rank(0, counts={"tp 0": (11, 10), "dp 0": (5, 5)}),
        rank(1, counts={"tp 0": (10, 10), "dp 1": (5, 4)}),
        rank(2, counts={"tp 1": (11, 10), "dp 0": (5, 5)}),
    ]
    found = causes(pairs(calls, ranks)[0])
    assert [finding.culprit_ranks for finding in found] == ([named] if named else [])
