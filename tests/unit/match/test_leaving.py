"""Ranks that leave: with a status other than 0 after their last collective, by destroying groups, by exiting."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, NewGroup, Progress, Rank, Signature
from tests.support.evidence import SUM, WORLD, judge
from tests.support.verdicts import causes

PAIR = Group("p", "1", "pair", (0, 1))


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


def waiting(rank: int, state: CallState = CallState.IN_FLIGHT) -> Call:
    return dataclasses.replace(call(rank, 6, state), age=9.0, duration=0.01 if state is CallState.FAILED else None)


LEAVING = {
    "busy elsewhere": Rank(1, idle=0.2, progress={"w": Progress(5, 5, destroyed=True)}, site="save.py:3 save"),
    "idle": Rank(1, idle=9.0, progress={"w": Progress(5, 5, destroyed=True)}, site="save.py:3 save"),
}


@pytest.mark.parametrize("how", LEAVING)
def test_a_rank_that_destroyed_the_group_has_left_it_and_is_not_called_blocked(how: str) -> None:
    (cause,) = causes(verdict([waiting(0), waiting(2)], [alive(0, 6), LEAVING[how], alive(2, 6)]))
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.MISSING_RANK, (1,), None)
    assert "rank 1 had left the group (it called destroy_process_group) and is alive at save.py:3 save" in cause.text
    assert "blocked" not in cause.text


def test_a_rank_that_destroyed_one_group_and_waits_in_another_left_the_call_out() -> None:
    other = Rank(1, idle=9.0, progress={"w": Progress(5, 5, destroyed=True), "p": Progress(1, 0)})
    pair = dataclasses.replace(waiting(1), group="p", sequence_id=1)
    (cause,) = causes(verdict([waiting(0), pair], [alive(0, 6), other, alive(2, 6)]))
    assert (cause.category, cause.culprit_ranks, cause.sequence_id) == (Category.MISSING_RANK, (1,), 6)


DESTROY = Signature("destroy_process_group")


def destroying(rank: int, group: str = "w", state: CallState = CallState.IN_FLIGHT, age: float = 12.0) -> Call:
    return Call(
        rank=rank,
        group=group,
        stream="group",
        sequence_id=1,
        record=9,
        signature=DESTROY,
        state=state,
        age=age,
        site="save.py:9 close",
    )


@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.COMPLETED, CallState.FAILED])
@pytest.mark.parametrize("ranks", [(0,), (0, 1), (0, 1, 2)])
def test_nobody_waits_in_a_call_that_destroys_a_group(state: CallState, ranks: tuple[int, ...]) -> None:
    """Not even if others make calls of other groups under its number."""
    new = Call(
        rank=2,
        group="w",
        stream="group",
        sequence_id=1,
        record=2,
        signature=Signature("new_group", new_group=NewGroup("1", "tp", (2,))),
        state=CallState.COMPLETED,
    )
    calls = [*[call(r, 5) for r in range(3)], *[destroying(r, state=state) for r in ranks], new]
    assert verdict(calls, [alive(r) for r in range(3)]) == []


@pytest.mark.parametrize("group", ["w", "p"])
def test_a_rank_that_hangs_while_it_destroys_a_group_is_said_to_be_there(group: str) -> None:
    """Who destroys the default group destroys all groups."""
    ranks = [Rank(r, idle=9.0, progress={"w": Progress(5, 5), "p": Progress(6, 5)}) for r in range(2)]
    pair = dataclasses.replace(waiting(0), group="p")
    calls = [*[call(r, 5) for r in range(2)], pair, destroying(1, group)]
    ranks[1].progress["p"], ranks[1].site = Progress(5, 5), "save.py:9 close"
    (cause,) = causes(verdict(calls, ranks))
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.MISSING_RANK, (1,), None)
    name = "default_pg (0)" if group == "w" else "pair (1)"
    assert f"; rank 1 is alive at save.py:9 close, in destroy_process_group of group {name}" in cause.summary
    assert f"its last call, destroy_process_group of group {name}, has not completed" in cause.details
    assert "in no call" not in cause.summary


def test_a_rank_that_left_a_group_before_its_timeout_is_not_waited_for_to_move() -> None:
    """It may be busy, but can join no more; the wait in another group that it destroys is none."""
    busy = Rank(1, idle=0.1, progress={"w": Progress(5, 5)})
    (cause,) = causes(verdict([waiting(0), waiting(2), destroying(1, age=0.3)], [alive(0, 6), busy, alive(2, 6)]))
    assert cause.culprit_ranks == (1,)


@pytest.mark.parametrize("own", [True, False])
def test_the_place_that_destroyed_the_group_is_named(own: bool) -> None:
    here, other = Progress(5, 5, destroyed=True), Progress(2, 2, destroyed=True)
    (here if own else other).destroyed_at = "save.py:9 close"
    rank = Rank(1, idle=9.0, progress={"p": here, "w": other}, site="save.py:3 save")
    alone = dataclasses.replace(waiting(0), group="p")
    (cause,) = causes(verdict([alone], [Rank(0, idle=9.0, progress={"p": Progress(6, 5)}), rank]))
    assert "had left the group (it called destroy_process_group at save.py:9 close)" in cause.summary


def test_a_group_that_was_destroyed_after_a_failure_does_not_show_that_it_was_caught() -> None:
    """The rank ends by the failure all the same."""
    failed = dataclasses.replace(call(0, 6, CallState.FAILED), age=9.0, duration=3.0, error="timeout")
    done = destroying(0, state=CallState.COMPLETED, age=1.0)
    ranks = [alive(0, 6), alive(1), alive(2)]
    with_it, without = (verdict([failed, *more], ranks) for more in ([done], []))
    assert with_it == without != []


@pytest.mark.parametrize(("message", "shown"), [("", ""), ("no samples", " (sys.exit: no samples)")])
def test_a_rank_whose_interpreter_ends_is_exiting(message: str, shown: str) -> None:
    rank = Rank(1, idle=0.2, progress={"w": Progress(5, 5)}, exiting=True, exit_message=message, site="log.py:7 close")
    (cause,) = causes(verdict([waiting(0), waiting(2)], [alive(0, 6), rank, alive(2, 6)]))
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.MISSING_RANK, (1,), None)
    assert f"rank 1 is exiting{shown} at log.py:7 close" in cause.text
    rank.ending, rank.signal = Ending.KILLED, 15
    peers = [Rank(r, ending=Ending.RAISED, exception="RuntimeError", progress={"w": Progress(6, 5)}) for r in (0, 2)]
    calls = [waiting(0, CallState.FAILED), waiting(2, CallState.FAILED)]
    (cause,) = causes(verdict(calls, [peers[0], rank, peers[1]]))
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.MISSING_RANK, (1,), None)
    assert "it failed at once on ranks 0, 2; " in cause.text
    assert f"rank 1 was exiting{shown} and still at log.py:7 close when it was stopped from outside" in cause.text


def test_the_message_of_an_exit_is_told() -> None:
    rank = Rank(
        1,
        ending=Ending.RAISED,
        exit_code=1,
        exit_message="no samples",
        exception_site="train.py:4 main",
        progress={"w": Progress(5, 5)},
    )
    (cause,) = causes(verdict([waiting(0)], [alive(0, 6), rank, alive(2)]))
    assert (cause.category, cause.culprit_ranks) == (Category.RANK_DEAD, (1,))
    assert "rank 1 exited with code 1 (sys.exit: no samples) at train.py:4 main" in cause.text
    assert cause.call_sites[1] == "train.py:4 main"
