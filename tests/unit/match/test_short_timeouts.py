"""Timeouts below the stall time: a rank that its peers gave up is missing, even if it moved within the stall time."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group
from tests.support.evidence import WINDOW, WORLD, call, judge, rank
from tests.support.verdicts import causes

PAIR = Group("p", "1", "pair", (1, 3))
TIMEOUT = WINDOW / 2
GAVE_UP = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation"


def found_of(idle: float, *more: Call, since: float | None = None, ending: Ending = Ending.RAISED) -> list[Finding]:
    """Ranks 0 and 2 gave up the wait for rank 1, which has been in no call for ``idle`` seconds, and ended.

    Args:
        since: when its newest call ended, seconds ago; None: as ``idle`` says.
    """
    exception = GAVE_UP if ending is Ending.RAISED else ""
    ranks = [rank(r, 6, ending=ending, exception=exception, idle=0.2) for r in (0, 2)]
    ranks.append(rank(1, 5, counts={"p": (1, 0 if more else 1)}, idle=idle))
    ranks.append(rank(3, counts={"p": (0, 0)}, idle=idle))
    failed: dict[str, Any] = {"age": TIMEOUT + 0.2, "duration": TIMEOUT, "timeout": TIMEOUT, "error": "timeout"}
    calls = [call(r, 6, CallState.FAILED, **failed) for r in (0, 2)]
    newest = call(1, 5, CallState.COMPLETED, age=since or idle, duration=0.0, timeout=TIMEOUT)
    return causes(judge([*calls, *more, newest], ranks, (WORLD, PAIR), 4))


def test_a_rank_that_its_peers_gave_up_before_the_stall_time_is_missing() -> None:
    (found,) = found_of(TIMEOUT + 0.2)
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (1,), "host")


def test_a_late_report_of_a_rank_does_not_make_it_move() -> None:
    """Its idle time is as old as the report; the judge knows the age of its newest call."""
    (found,) = found_of(TIMEOUT - 0.2, since=TIMEOUT + 0.2)
    assert (found.category, found.culprit_ranks) == (Category.MISSING_RANK, (1,))


@pytest.mark.parametrize("ending", [Ending.RAISED, Ending.RUNNING])
def test_a_rank_that_moved_while_its_peers_waited_is_not_named_yet(ending: Ending) -> None:
    assert [finding.culprit_ranks for finding in found_of(TIMEOUT / 2, ending=ending)] in ([()], [])


def test_a_rank_that_may_wait_for_another_is_not_named_yet() -> None:
    beside = call(1, 1, group=PAIR, age=TIMEOUT + 0.2, record=9, timeout=TIMEOUT)
    assert [finding.culprit_ranks for finding in found_of(TIMEOUT + 0.2, beside)] == [()]


def test_a_rank_whose_peers_may_catch_the_timeout_is_not_named_yet() -> None:
    assert found_of(TIMEOUT + 0.2, ending=Ending.RUNNING) == []
