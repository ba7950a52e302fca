"""What is known of a rank that others wait for: where it is, what it waits for, and what is not known."""

from __future__ import annotations

from signal import SIGKILL
from typing import Any

from otel_fr.match import CallState, Category, Ending, Group, Rank
from tests.support.evidence import call, cause, rank

TP = Group("t", "3", "tp", (1, 2))
PP = Group("p", "4", "pp", (0, 1, 2))


def alive(number: int, **reached: int) -> Rank:
    return rank(number, counts={group: (count, count) for group, count in reached.items()}, site="train.py:7 load")


def waiting(number: int, reached: int) -> Rank:
    return rank(number, reached, reached - 1, site="train.py:7 load")


STOPPED: dict[str, Any] = {"python_blocked": True, "doing": "stopped by a signal (SIGSTOP)"}


def test_a_rank_that_was_stopped_in_a_collective_that_all_joined_is_the_culprit() -> None:
    """Its peers give up after the timeout of the calls; then their launcher kills the rank."""
    failed: dict[str, Any] = {"state": CallState.FAILED, "error": "timeout", "duration": 14.0, "age": 20.0}
    peer: dict[str, Any] = {"ending": Ending.RAISED, "exception": "RuntimeError: Timed out"}
    killed = rank(1, 5, **STOPPED, ending=Ending.KILLED, signal=SIGKILL)
    calls = [call(0, **failed), call(1, age=50.0, timeout=14.0), call(2, **failed)]
    found = cause(calls, [rank(0, 5, **peer), killed, rank(2, 5, **peer)])
    assert (found.rule, found.category, found.culprit_ranks) == ("stopped_rank", Category.RANK_STUCK, (1,))
    assert (found.waiting_ranks, found.age) == ((0, 2), 14.0)


def test_ranks_that_are_all_stopped_wait_for_nobody() -> None:
    found = cause([call(r) for r in range(3)], [rank(r, 5, **STOPPED) for r in range(3)])
    assert (found.rule, found.culprit_ranks) == ("all_joined", ())
