"""What is known of a rank that others wait for: where it is, what it waits for, and what is not known."""

from __future__ import annotations

import dataclasses
from signal import SIGKILL
from typing import Any

import pytest

from otel_fr.match import CallState, Category, Ending, Group, Rank
from tests.support.evidence import LONG, call, cause, message, rank

TP = Group("t", "3", "tp", (1, 2))
PP = Group("p", "4", "pp", (0, 1, 2))


def alive(number: int, **reached: int) -> Rank:
    return rank(number, counts={group: (count, count) for group, count in reached.items()}, site="train.py:7 load")


def waiting(number: int, reached: int) -> Rank:
    return rank(number, reached, reached - 1, site="train.py:7 load")


def test_a_rank_that_went_on_in_another_group_is_missing() -> None:
    found = cause(
        [call(0, 58), call(1, 58), call(2, 25, CallState.COMPLETED, group=TP)],
        [waiting(0, 58), waiting(1, 58), alive(2, w=57, t=25)],
        TP,
        PP,
    )
    assert found.culprit_ranks == (2,)


def test_a_stage_that_is_stuck_in_its_code_is_missing() -> None:
    """Stages 0 and 2 of a pipeline wait for stage 1, which has received from stage 0 and computes."""
    found = cause(
        [
            message(0, "send", 1, group=PP, pair_index=1),
            message(2, "recv", 1, group=PP),
            message(1, "recv", 0, state=CallState.COMPLETED, group=PP, record=99),
            message(0, "send", 1, state=CallState.COMPLETED, group=PP, record=99),
        ],
        [alive(0), alive(1, p=0), alive(2)],
        TP,
        PP,
    )
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")


def test_a_rank_that_ended_well_without_its_half_of_a_message_left_it_out() -> None:
    ended = dataclasses.replace(alive(1), ending=Ending.CLEAN)
    found = cause([message(0, "send", 1, group=PP)], [alive(0), ended, alive(2)], TP, PP)
    assert (found.category, found.culprit_ranks) == (Category.UNMATCHED_P2P, (1,))


def test_a_rank_that_receives_from_any_source_is_not_said_to_be_blocked_on_the_host() -> None:
    found = cause(
        [message(0, "recv", None, group=PP), call(1, 2), call(2, 2)],
        [alive(0, w=1), waiting(1, 2), waiting(2, 2)],
        TP,
        PP,
    )
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (0,), None)


STOPPED: dict[str, Any] = {"python_blocked": True, "doing": "stopped by a signal (SIGSTOP)"}


@pytest.mark.parametrize(
    ("end", "calls"),
    [
        ({}, {"age": LONG}),
        ({"ending": Ending.KILLED, "signal": SIGKILL}, {"age": 50.0, "timeout": 14.0}),
    ],
)
def test_a_rank_that_was_stopped_in_a_collective_that_all_joined_is_the_culprit(
    end: dict[str, Any], calls: dict[str, Any]
) -> None:
    # Its peers give up after the timeout of the calls; then their launcher kills the rank.
    failed: dict[str, Any] = (
        {"state": CallState.FAILED, "error": "timeout", "duration": 14.0, "age": 20.0} if end else {}
    )
    peer: dict[str, Any] = {"ending": Ending.RAISED, "exception": "RuntimeError: Timed out"} if end else {}
    found = cause(
        [call(0, **failed), call(1, **calls), call(2, **failed)],
        [rank(0, 5, **peer), rank(1, 5, **STOPPED, **end), rank(2, 5, **peer)],
    )
    assert (found.rule, found.category, found.culprit_ranks) == ("stopped_rank", Category.RANK_STUCK, (1,))
    assert found.waiting_ranks == (0, 2)
    assert found.age == (14.0 if end else LONG)


def test_ranks_that_are_all_stopped_wait_for_nobody() -> None:
    found = cause([call(r) for r in range(3)], [rank(r, 5, **STOPPED) for r in range(3)])
    assert (found.rule, found.culprit_ranks) == ("all_joined", ())
