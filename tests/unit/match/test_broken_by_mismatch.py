"""What fails in other groups, or stands still there, follows from a mismatch: gloo aborts a rank that gets more than it
asked for, and on NCCL the devices of both ranks wait until PyTorch's watchdog ends all."""

from __future__ import annotations

from dataclasses import replace
from signal import SIGABRT, SIGTERM
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, Signature
from tests.support.evidence import BARRIER, LARGE, SUM, call, judge, rank, world
from tests.support.verdicts import causes

DP, TP = Group("d", "1", "dp", (0, 1, 2, 3)), Group("t", "2", "tp", (0, 1, 2, 3))
ABORTED = 2
"""The rank that the backend aborts."""


def seventh(rank: int, group: str, signature: Signature, state: CallState, **more: Any) -> Call:
    record = 7 if group == "d" else 8
    return call(rank, 7, state, signature, group=group, record=record, timeout=12.0, **more)


def failed(rank: int, group: str, signature: Signature = SUM, *, after: float = 4.0) -> Call:
    return seventh(rank, group, signature, CallState.FAILED, age=6.0, duration=after, error="collective_failed")


def hanging(rank: int, group: str) -> Call:
    return seventh(rank, group, SUM, CallState.IN_FLIGHT, age=6.0)


def judged(dp: list[Call], tp: list[Call]) -> list[Finding]:
    """All issue an asynchronous all_reduce in dp and then one in tp."""
    counts = {"d": (7, 6), "t": (7, 6)}
    ranks = [rank(r, counts=counts, ending=Ending.RAISED, exit_code=1, idle=2.0) for r in range(4)]
    ranks[ABORTED] = rank(ABORTED, counts=counts, ending=Ending.KILLED, signal=6, idle=2.0)
    return judge([*dp, *tp], ranks, (DP, TP), 4)


TP_CALLS = [failed(0, "t"), failed(1, "t"), hanging(ABORTED, "t"), failed(3, "t", LARGE)]


@pytest.mark.parametrize(
    "dp",
    [[failed(rank, "d") for rank in range(4)], [failed(0, "d"), failed(1, "d"), hanging(ABORTED, "d"), failed(3, "d")]],
    ids=["failed on all", "in flight on the one that died"],
)
def test_the_mismatch_is_the_only_cause(dp: list[Call]) -> None:
    findings = judged(dp, TP_CALLS)
    (cause,) = causes(findings)
    assert (cause.category, cause.culprit_ranks) == (Category.SIZE_MISMATCH, (3,))
    assert all(finding.caused_by == cause.key for finding in findings if finding is not cause)
    assert sum(finding.category is Category.RANK_DEAD for finding in findings) <= 1


def test_calls_that_timed_out_are_a_fault_of_their_own() -> None:
    timed_out = [seventh(r, "d", SUM, CallState.FAILED, age=20.0, duration=12.0, error="timeout") for r in range(4)]
    found = {finding.category for finding in causes(judged(timed_out, TP_CALLS))}
    assert Category.STALLED_COLLECTIVE in found


def test_a_death_outside_of_the_mismatch_is_a_fault_of_its_own() -> None:
    """It had ended its own call there."""
    done = seventh(ABORTED, "t", SUM, CallState.COMPLETED, age=None)
    tp = [one if one.rank != ABORTED else done for one in TP_CALLS]
    found = {finding.category for finding in causes(judged([failed(0, "d"), hanging(ABORTED, "d")], tp))}
    assert found == {Category.SIZE_MISMATCH, Category.RANK_DEAD}


def just_called(rank: int, signature: Signature = SUM) -> Call:
    return seventh(rank, "t", signature, CallState.IN_FLIGHT, age=0.3)


def after_two(*tp: Call, dead: int, **ending: Any) -> list[Finding]:
    """Rank 3 calls wrongly in the sixth all_reduce, which completes, and ``tp`` are the seventh calls."""
    sixth = [call(r, 6, CallState.COMPLETED, LARGE if r == 3 else SUM, group="t", record=6) for r in range(4)]
    reached = {own.rank for own in tp}
    ranks = [rank(r, counts={"t": (7 if r in reached else 6, 6)}, idle=0.5) for r in range(4)]
    ranks[dead] = rank(dead, counts={"t": (7 if dead in reached else 6, 6)}, idle=0.5, **ending)
    return judge([*sixth, *tp], ranks, (TP,), 4)


def test_a_death_in_the_next_call_that_does_not_fit_is_a_consequence() -> None:
    tp = [failed(0, "t", after=0.2), just_called(1), just_called(ABORTED), just_called(3, LARGE)]
    (cause,) = causes(after_two(*tp, dead=ABORTED, ending=Ending.KILLED, signal=SIGABRT))
    assert (cause.category, cause.culprit_ranks, cause.sequence_id) == (Category.SIZE_MISMATCH, (3,), 6)


def test_a_death_in_the_next_call_that_fits_is_a_fault_of_its_own() -> None:
    tp = [failed(0, "t", after=0.2), just_called(1), just_called(ABORTED), just_called(3)]
    found = causes(after_two(*tp, dead=ABORTED, ending=Ending.KILLED, signal=SIGABRT))
    assert {(one.category, one.culprit_ranks) for one in found} == {
        (Category.SIZE_MISMATCH, (3,)),
        (Category.RANK_DEAD, (ABORTED,)),
    }


def test_the_rank_that_called_wrongly_and_then_raised_is_named_once() -> None:
    """What it received was not what it had asked for, and its program could not use it."""
    raised = {"ending": Ending.RAISED, "exit_code": 1, "exception": "_pickle.UnpicklingError: invalid load key"}
    findings = after_two(hanging(0, "t"), hanging(1, "t"), dead=3, **raised)
    (cause,) = causes(findings)
    assert (cause.category, cause.culprit_ranks) == (Category.SIZE_MISMATCH, (3,))
    assert {one.category for one in findings} == {Category.SIZE_MISMATCH, Category.RANK_DEAD, Category.MISSING_RANK}


BOTH, LEFT, ACROSS = Group("b", "1", "both", (2, 3)), Group("l", "2", "left", (0, 1)), Group("a", "3", "across", (1, 2))
IN_ORDER = {0: [LEFT, world(4)], 1: [ACROSS, LEFT, world(4)], 2: [BOTH, ACROSS, world(4)], 3: [BOTH, world(4)]}
"""What each rank has enqueued and its device has not completed."""


def behind(age: float, **ending: Any) -> list[Finding]:
    """Ranks 2 and 3 differ in a call of both; rank 1 waits for rank 2 in one that both have joined, rank 0 for rank 1.

    Without timing, PyTorch does not say which calls the devices have begun. Its limit is 300 s.
    """
    calls, ranks = list[Call](), list(map(rank, range(4)))
    for number, groups in IN_ORDER.items():
        counts = {group.id: (5, 4) for group in groups}
        ranks[number] = rank(number, counts=counts, idle=age, **ending)
        for record, group in enumerate(groups):
            signature = BARRIER if group is BOTH and number == 3 else SUM
            calls.append(call(number, 5, signature=signature, group=group, record=record, age=age, queued=None))
    return judge([replace(one, timeout=300.0) for one in calls], ranks, (world(4), BOTH, LEFT, ACROSS), 4)


@pytest.mark.parametrize("age", [21.0, 90.0])
@pytest.mark.parametrize("ending", [{}, {"ending": Ending.KILLED, "signal": SIGABRT}], ids=["waiting", "aborted"])
def test_ranks_whose_devices_wait_behind_a_mismatch_are_its_victims(age: float, ending: dict[str, Any]) -> None:
    (cause,) = causes(behind(age, **ending))
    assert (cause.category, cause.culprit_ranks) == (Category.OP_MISMATCH, (2, 3))


@pytest.mark.parametrize(
    ("absent", "second"),
    [
        ({}, [(Category.MISSING_RANK, (3,))]),
        ({"python_blocked": True}, [(Category.RANK_STUCK, (3,))]),
        ({"idle": 0.1}, []),
        ({"ending": Ending.CLEAN}, []),
    ],
    ids=["in no call", "does not run Python", "moved a moment ago", "ended well"],
)
def test_a_rank_that_is_absent_from_the_mismatched_call_is_a_second_fault(
    absent: dict[str, Any], second: list[tuple[Category, tuple[int, ...]]]
) -> None:
    calls = [call(r, signature=LARGE if r == 1 else SUM) for r in range(3)]
    found = causes(judge(calls, [*(rank(r, 5, 4) for r in range(3)), rank(3, 4, **absent)], (world(4),), 4))
    assert [(one.category, one.culprit_ranks) for one in found] == [(Category.SIZE_MISMATCH, (1,)), *second]
    assert len({one.key for one in found}) == len(found)


@pytest.mark.parametrize(
    ("idle", "failed_after", "second"),
    [(9.0, None, [(Category.MISSING_RANK, (3,))]), (0.1, None, []), (9.0, 0.2, [])],
    ids=["away", "on its way", "nobody waited"],
)
def test_it_is_one_as_well_once_a_launcher_has_stopped_all_ranks(
    idle: float, failed_after: float | None, second: list[tuple[Category, tuple[int, ...]]]
) -> None:
    """``idle``: for how long it had been in no call then. ``failed_after``: of the others' calls; None: they wait."""
    state = CallState.IN_FLIGHT if failed_after is None else CallState.FAILED
    calls = [call(r, 5, state, LARGE if r == 1 else SUM, duration=failed_after) for r in range(3)]
    ranks = [*(rank(r, 5, 4) for r in range(3)), rank(3, 4, idle=idle)]
    stopped = [replace(info, ending=Ending.KILLED, signal=SIGTERM) for info in ranks]
    found = causes(judge(calls, stopped, (world(4),), 4))
    assert [(one.category, one.culprit_ranks) for one in found] == [(Category.SIZE_MISMATCH, (1,)), *second]
