"""Waits that are seen later than they begin: a rank is not taken for one that is in no call because of that."""

from __future__ import annotations

from signal import SIGKILL
from typing import Any

import pytest

from otel_fr.match import CallState, Ending, Group
from tests.support.evidence import WINDOW, blamed, call, cause, rank, verdict
from tests.support.verdicts import causes

PAIR = Group("p", "1", "", (0, 1))


@pytest.mark.parametrize(("seen", "named"), [(WINDOW - 0.1, []), (WINDOW, [(1,)])])
def test_a_rank_in_a_call_that_its_device_was_seen_to_begin_late_is_not_named(
    seen: float, named: list[tuple[int, ...]]
) -> None:
    """Rank 0 has enqueued the pair's call long ago; rank 2 waits for both in the world's."""
    ranks = [rank(0, 4, counts={"p": (5, 4)}), rank(1, 4, counts={"p": (4, 4)}), rank(2, 5)]
    calls = [call(0, 5, group=PAIR, record=9, age=seen), call(2, 5, record=9)]
    assert [culprits for _, culprits in blamed(calls, ranks, PAIR)] == named


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        pytest.param(WINDOW - 0.1, [], id="it may end"),
        pytest.param(WINDOW, [("rank_stuck", (1,), 5)], id="its device does not complete it"),
        pytest.param(None, [("missing_rank", (1,), 6)], id="it has ended, as was seen late"),
    ],
)
def test_a_rank_whose_call_was_seen_to_end_late_is_missing_or_stuck_and_never_both(
    seen: float | None, named: list[tuple[str, tuple[int, ...], int]]
) -> None:
    """The others completed the call, and wait in the next one, which rank 1 has not enqueued."""
    done = 5 if seen is None else 4
    ranks = [rank(0, 6), rank(1, 5, done), rank(2, 6)]
    waits = [call(r, 6) for r in (0, 2)]
    found = verdict([*waits, *([] if seen is None else [call(1, 5, age=seen)])], ranks)
    assert [(one.category.value, one.culprit_ranks, one.sequence_id) for one in causes(found)] == named


@pytest.mark.parametrize(
    ("shown", "number"),
    [
        pytest.param({"queued": None}, 6, id="in flight when PyTorch's recorder was asked last"),
        pytest.param({"state": CallState.UNKNOWN}, 6, id="its backend does not show when it ends"),
        pytest.param({}, 5, id="its end would be known"),
    ],
)
def test_a_rank_that_was_killed_after_its_calls_did_not_join_the_next_one(shown: dict[str, Any], number: int) -> None:
    """All joined call 5; whether it ended is known late. The others went on to call 6."""
    ranks = [*(rank(r, 6, 4, idle=0.1) for r in (0, 2)), rank(1, 5, 4, ending=Ending.KILLED, signal=SIGKILL, idle=None)]
    joined = [call(r, 5, age=0.3, **shown) for r in range(3)]
    waits = [call(r, 6, age=0.2, **shown) for r in (0, 2)]
    found = cause([*joined, *waits], ranks)
    assert (found.category.value, found.culprit_ranks, found.sequence_id) == ("rank_dead", (1,), number)
    found = cause(joined, ranks)
    assert (found.category.value, found.culprit_ranks, found.sequence_id) == ("rank_dead", (1,), 5)
