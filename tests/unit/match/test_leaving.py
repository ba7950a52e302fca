"""Ranks that leave: with a status other than 0 after their last collective, by destroying groups, by exiting."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Group, NewGroup, Progress, Rank, Signature
from tests.support.evidence import LONG, call, cause, message, rank, verdict

PAIR = Group("p", "1", "pair", (0, 1))


def left(number: int, **more: Any) -> Rank:
    """A rank that destroyed its groups after number 5, and exited with status 1."""
    progress = {"w": Progress(5, 5, destroyed=True), "p": Progress(2, 2, destroyed=True)}
    return Rank(number, **{"ending": Ending.RAISED, "exit_code": 1, "progress": progress, **more})


@pytest.mark.parametrize("state", [CallState.COMPLETED, CallState.UNKNOWN])
@pytest.mark.parametrize("how_many", [1, 2, 3])
def test_a_status_of_the_program_after_all_groups_were_destroyed_is_no_fault(state: CallState, how_many: int) -> None:
    ranks = [left(r) if r < how_many else rank(r, 5) for r in range(3)]
    assert verdict([call(r, 5, state, age=0.5) for r in range(3)], ranks, PAIR) == []


def test_the_ranks_that_torchrun_stops_then_are_not_at_fault_either() -> None:
    stopped = rank(2, 5, ending=Ending.KILLED, signal=15)
    assert verdict([call(r, 5, CallState.COMPLETED) for r in range(3)], [left(0), rank(1, 5), stopped], PAIR) == []


@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.UNKNOWN, CallState.FAILED])
def test_others_that_wait_for_it_show_that_it_left_too_early(state: CallState) -> None:
    found = cause([call(0, 6, state, age=0.5)], [rank(0, 6), left(1), rank(2, 5)], PAIR)
    assert (found.category, found.culprit_ranks, found.sequence_id) == (Category.RANK_DEAD, (1,), 6)


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
    found = cause(
        [call(r, 5, CallState.COMPLETED) for r in range(3)], [rank(0, 5), left(1, **FAULTS[fault]), rank(2, 5)], PAIR
    )
    assert (found.category, found.culprit_ranks) == (Category.RANK_DEAD, (1,))


def test_a_call_of_its_own_that_did_not_complete_keeps_it_a_fault() -> None:
    found = cause([call(1, age=0.5)], [rank(0, 5), left(1), rank(2, 5)], PAIR)
    assert (found.category, found.culprit_ranks) == (Category.RANK_DEAD, (1,))


def waiting(rank: int, state: CallState = CallState.IN_FLIGHT) -> Call:
    return call(rank, 6, state, duration=0.01 if state is CallState.FAILED else None)


def test_a_rank_that_destroyed_the_group_has_left_it_although_it_moves() -> None:
    busy = Rank(1, idle=0.2, progress={"w": Progress(5, 5, destroyed=True)}, site="save.py:3 save")
    found = cause([waiting(0), waiting(2)], [rank(0, 6), busy, rank(2, 6)])
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), None)


def test_a_rank_that_destroyed_one_group_and_waits_in_another_left_the_call_out() -> None:
    other = Rank(1, idle=LONG, progress={"w": Progress(5, 5, destroyed=True), "p": Progress(1, 0)})
    pair = call(1, 1, group=PAIR, record=6)
    found = cause([waiting(0), pair], [rank(0, 6), other, rank(2, 6)], PAIR)
    assert (found.category, found.culprit_ranks, found.sequence_id) == (Category.MISSING_RANK, (1,), 6)


DESTROY = Signature("destroy_process_group")


def destroying(rank: int, group: str = "w", state: CallState = CallState.IN_FLIGHT, age: float = 12.0) -> Call:
    return call(rank, 1, state, DESTROY, group=group, stream="group", record=9, age=age, site="save.py:9 close")


@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.COMPLETED, CallState.FAILED])
@pytest.mark.parametrize("ranks", [(0,), (0, 1), (0, 1, 2)])
def test_nobody_waits_in_a_call_that_destroys_a_group(state: CallState, ranks: tuple[int, ...]) -> None:
    """Not even if others make calls of other groups under its number."""
    new = Signature("new_group", new_group=NewGroup("1", "tp", (2,)))
    calls = [*[call(r, 5, CallState.COMPLETED) for r in range(3)], *[destroying(r, state=state) for r in ranks]]
    calls.append(call(2, 1, CallState.COMPLETED, new, stream="group", record=2))
    assert verdict(calls, [rank(r, 5) for r in range(3)], PAIR) == []


@pytest.mark.parametrize("group", ["w", "p"])
def test_a_rank_that_hangs_while_it_destroys_a_group_is_missing(group: str) -> None:
    """Who destroys the default group destroys all groups."""
    ranks = [rank(r, 5, counts={"p": (6, 5)}) for r in range(2)]
    pair = call(0, 6, group=PAIR)
    calls = [*[call(r, 5, CallState.COMPLETED) for r in range(2)], pair, destroying(1, group)]
    ranks[1].progress["p"], ranks[1].site = Progress(5, 5), "save.py:9 close"
    found = cause(calls, ranks, PAIR)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), None)


def test_a_rank_that_left_a_group_before_its_timeout_is_not_waited_for_to_move() -> None:
    """It may be busy, but can join no more; the wait in another group that it destroys is none."""
    busy = rank(1, 5, idle=0.1)
    found = cause([waiting(0), waiting(2), destroying(1, age=0.3)], [rank(0, 6), busy, rank(2, 6)], PAIR)
    assert found.culprit_ranks == (1,)


def test_a_group_that_was_destroyed_after_a_failure_does_not_show_that_it_was_caught() -> None:
    """The rank ends by the failure all the same."""
    failed = call(0, 6, CallState.FAILED, duration=3.0, error="timeout")
    done = destroying(0, state=CallState.COMPLETED, age=1.0)
    ranks = [rank(0, 6), rank(1, 5), rank(2, 5)]
    with_it, without = (verdict([failed, *more], ranks, PAIR) for more in ([done], []))
    assert with_it == without != []


def test_a_rank_whose_interpreter_ends_may_end_in_a_moment() -> None:
    """Then how it ended shows who is at fault."""
    here = rank(1, 5, idle=0.2, exiting=True, site="log.py:7 close")
    assert verdict([waiting(0), waiting(2)], [rank(0, 6), here, rank(2, 6)], PAIR) == []


def test_a_rank_that_exits_because_of_ctrl_c_had_left_nothing() -> None:
    stopped = rank(1, 5, exiting=True, site="data.py:3 load", ending=Ending.KILLED, signal=2)
    stopped.exception = "KeyboardInterrupt"
    found = cause([message(0, "recv", 1), call(1, 5, CallState.COMPLETED)], [rank(0, 5), stopped, rank(2, 5)])
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")
    assert "rank 1 was still at data.py:3 load, in no call, when it was stopped" in found.summary


DONE: dict[str, Any] = {"progress": {"w": Progress(5, 5, destroyed=True)}}
ENDED: dict[str, Any] = {"ending": Ending.CLEAN}
STOPPED: dict[str, Any] = {"ending": Ending.KILLED, "signal": 15}


@pytest.mark.parametrize("state", [CallState.IN_FLIGHT, CallState.FAILED])
@pytest.mark.parametrize("ends", [{}, ENDED, STOPPED], ids=["runs", "ended well", "stopped"])
def test_most_ranks_that_destroyed_the_group_are_not_accused_by_one_that_calls_once_more(
    ends: dict[str, Any], state: CallState
) -> None:
    """Some still save something, or were stopped while they did."""
    ranks = [rank(0, 6), rank(1, ending=Ending.CLEAN, **DONE), rank(2, **DONE, **ends)]
    found = cause([call(0, 6, state, duration=0.1)], ranks)
    assert (found.rule, found.culprit_ranks) == ("call_too_many", (0,))


@pytest.mark.parametrize("ends", [ENDED, {}], ids=["ended well", "runs"])
def test_a_rank_that_ended_well_and_left_no_file_counts_as_done(ends: dict[str, Any]) -> None:
    """One that waits as well would have left a file."""
    found = cause([call(0, 6)], [rank(0, 6), rank(2, **DONE, **ends)])
    assert (found.rule, found.culprit_ranks) == ("call_too_many", (0,))
    assert "rank 1" not in found.summary


def test_a_rank_that_destroyed_the_group_is_named_if_more_of_its_machine_wait() -> None:
    """Ranks 4 to 7 are on another machine, whose files are not here."""
    waiting = [call(r, 6) for r in (0, 2, 3)]
    found = cause(waiting, [*(rank(r, 6) for r in (0, 2, 3)), rank(1, **DONE)], size=8)
    assert found.culprit_ranks == (1,)


@pytest.mark.parametrize("size", [3, 4])
def test_a_rank_that_has_not_come_so_far_is_named_without_those_that_are_done(size: int) -> None:
    done = [rank(r, ending=Ending.CLEAN, **DONE) for r in range(2, size)]
    found = cause([call(0, 6)], [rank(0, 6), rank(1, 5), *done], size=size)
    assert (found.rule, found.culprit_ranks) == ("absent_rank", (1,))
