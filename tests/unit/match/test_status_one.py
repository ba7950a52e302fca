"""Ranks that exit with a status other than 0 after their last collective: a fault only if somebody waits for them."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, Progress, Rank, Signature
from tests.support.verdicts import causes, judge

WORLD = Group("w", "0", "default_pg", (0, 1, 2))
PAIR = Group("p", "1", "pair", (0, 1))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")


def left(number: int, **more: Any) -> Rank:
    """A rank that destroyed its groups after number 5, and exited with status 1."""
    progress = {"w": Progress(5, 5, destroyed=True), "p": Progress(2, 2, destroyed=True)}
    return Rank(number, **{"ending": Ending.RAISED, "exit_code": 1, "progress": progress, **more})


def alive(number: int, reached: int = 5) -> Rank:
    return Rank(number, idle=9.0, progress={"w": Progress(reached, reached)})


def call(rank: int, number: int, state: CallState = CallState.COMPLETED) -> Call:
    age = None if state is CallState.COMPLETED else 0.5
    return Call(
        rank=rank,
        group="w",
        stream="collective",
        sequence_id=number,
        record=number,
        signature=SUM,
        state=state,
        age=age,
    )


def verdict(calls: list[Call], ranks: list[Rank]) -> list[Finding]:
    return judge(calls, ranks, (WORLD, PAIR), 3)


@pytest.mark.parametrize("state", [CallState.COMPLETED, CallState.UNKNOWN])
@pytest.mark.parametrize("how_many", [1, 2, 3])
def test_a_status_of_the_program_after_all_groups_were_destroyed_is_no_fault(state: CallState, how_many: int) -> None:
    ranks = [left(r) if r < how_many else alive(r) for r in range(3)]
    assert verdict([call(r, 5, state) for r in range(3)], ranks) == []


def test_the_ranks_that_torchrun_stops_then_are_not_at_fault_either() -> None:
    stopped = Rank(2, ending=Ending.KILLED, signal=15, progress={"w": Progress(5, 5)})
    assert verdict([call(r, 5) for r in range(3)], [left(0), alive(1), stopped]) == []


@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.UNKNOWN, CallState.FAILED])
def test_others_that_wait_for_it_show_that_it_left_too_early(state: CallState) -> None:
    (cause,) = causes(verdict([call(0, 6, state)], [alive(0, 6), left(1), alive(2)]))
    assert (cause.category, cause.culprit_ranks, cause.sequence_id) == (Category.RANK_DEAD, (1,), 6)


FAULTS: dict[str, dict[str, Any]] = {
    "killed": {"ending": Ending.KILLED, "signal": 9, "exit_code": None},
    "segmentation fault": {"ending": Ending.KILLED, "signal": 11, "exit_code": None},
    "exception": {"exception": "OSError: disk full"},
    "a group is left": {"progress": {"w": Progress(5, 5), "p": Progress(2, 2, destroyed=True)}},
    "groups unknown": {"progress": {}},
    "how it ended is not known": {"ending": Ending.GONE, "exit_code": None},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_any_other_bad_end_is_reported_although_nobody_waits(fault: str) -> None:
    (cause,) = causes(verdict([call(r, 5) for r in range(3)], [alive(0), left(1, **FAULTS[fault]), alive(2)]))
    assert (cause.category, cause.culprit_ranks) == (Category.RANK_DEAD, (1,))


def test_a_call_of_its_own_that_did_not_complete_keeps_it_a_fault() -> None:
    (cause,) = causes(verdict([call(1, 5, CallState.IN_FLIGHT)], [alive(0), left(1), alive(2)]))
    assert (cause.category, cause.culprit_ranks) == (Category.RANK_DEAD, (1,))
