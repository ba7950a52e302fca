"""Ranks whose host gives them no processor: they are late, unless they have had time enough of their own."""

from __future__ import annotations

from signal import SIGKILL
from typing import Any

import pytest

from otel_fr.match import CallState, Category, Ending
from tests.support.evidence import WINDOW, blamed, call, cause, message, rank

STARVED: dict[str, Any] = {"idle": 9.0, "starved": 8.6, "site": "train.py:9 load"}
LOOP: dict[str, Any] = {"idle": 9.0 + WINDOW, "starved": 9.0 - 0.1}
"""On a busy host, which gave it more than the window."""
STOPPED = "stopped by a signal (SIGSTOP)"


@pytest.mark.parametrize("blocked", [False, True])
def test_a_rank_without_a_processor_is_late_whether_or_not_it_had_one_to_answer(blocked: bool) -> None:
    found = cause([call(0), call(2)], [rank(0, 5), rank(1, 4, **STARVED, python_blocked=blocked), rank(2, 5)])
    assert (found.category, found.rule, found.culprit_ranks) == (Category.STRAGGLER, "starved_rank", (1,))
    assert found.stuck_on is None
    assert "do not run" not in found.text


@pytest.mark.parametrize(
    ("shown", "category"),
    [
        (LOOP, Category.MISSING_RANK),
        ({**LOOP, "python_blocked": True}, Category.RANK_STUCK),
        ({"idle": 3.0, "starved": 1.2}, Category.MISSING_RANK),  # another thing has kept it for longer
        ({**STARVED, "python_blocked": True, "doing": STOPPED}, Category.RANK_STUCK),
        ({**STARVED, "ending": Ending.KILLED, "signal": SIGKILL}, Category.RANK_DEAD),
    ],
    ids=["a loop", "a loop in C", "a little", "stopped", "killed"],
)
def test_a_fault_on_a_busy_host_is_a_fault(shown: dict[str, Any], category: Category) -> None:
    assert blamed([call(0), call(2)], [rank(0, 5), rank(1, 4, **shown), rank(2, 5)]) == [(category, (1,))]


def test_of_two_ranks_that_have_not_joined_the_one_that_is_only_late_is_not_named() -> None:
    ranks = [rank(0, 5), rank(1, 4, **STARVED), rank(2, 4)]
    assert blamed([call(0)], ranks) == [(Category.MISSING_RANK, (2,))]


def test_a_message_whose_other_half_comes_late_is_not_unmatched() -> None:
    ranks = [rank(0, 4), rank(1, 4, **STARVED), rank(2, 4)]
    assert blamed([message(0, "recv", 1)], ranks) == [(Category.STRAGGLER, (1,))]


def test_a_rank_without_a_processor_is_not_named_beside_one_that_died() -> None:
    killed = rank(2, 5, ending=Ending.KILLED, signal=SIGKILL, ended_for=1.0)
    waiting = call(2, age=4.0)
    ranks = [rank(0, 5), rank(1, 4, **STARVED, python_blocked=True), killed]
    assert blamed([call(0), waiting], ranks) == [(Category.RANK_DEAD, (2,))]


def test_of_a_rank_that_joins_nothing_is_said() -> None:
    ranks = [rank(0, 5), rank(1, 5, idle=0.1, starved=0.1), rank(2, 5)]
    assert blamed([call(r, state=CallState.COMPLETED) for r in range(3)], ranks) == []
