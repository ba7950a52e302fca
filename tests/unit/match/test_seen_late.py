"""Waits that are seen later than they begin: a rank is not taken for one that is in no call because of that."""

from __future__ import annotations

from dataclasses import replace
from signal import SIGKILL
from typing import Any

import pytest

from otel_fr.match import Call, CallState, Ending, Group, Progress, Rank
from tests.support.evidence import SUM, WINDOW, judge
from tests.support.verdicts import causes

WORLD, PAIR = Group("w", "0", "default_pg", (0, 1, 2)), Group("p", "1", "", (0, 1))
LONG = 3 * WINDOW


def call(rank: int, group: Group, age: float) -> Call:
    return Call(
        rank=rank, group=group.id, stream="collective", sequence_id=5, record=9, signature=SUM,
        state=CallState.IN_FLIGHT, age=age,
    )  # fmt: skip


@pytest.mark.parametrize(("seen", "named"), [(WINDOW - 0.1, []), (WINDOW, [(1,)])])
def test_a_rank_in_a_call_that_its_device_was_seen_to_begin_late_is_not_named(
    seen: float, named: list[tuple[int, ...]]
) -> None:
    """Rank 0 has enqueued the pair's call long ago; rank 2 waits for both in the world's."""
    ranks = [
        Rank(0, idle=LONG, progress={"w": Progress(4, 4), "p": Progress(5, 4)}),
        Rank(1, idle=LONG, progress={"w": Progress(4, 4), "p": Progress(4, 4)}),
        Rank(2, idle=LONG, progress={"w": Progress(5, 4)}),
    ]
    found = judge([call(0, PAIR, seen), call(2, WORLD, LONG)], ranks, (WORLD, PAIR), 3)
    assert [cause.culprit_ranks for cause in causes(found)] == named


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
    ranks = [Rank(r, idle=LONG, progress={"w": Progress(6, 5)}) for r in (0, 2)]
    ranks.append(Rank(1, idle=LONG, progress={"w": Progress(5, done)}))
    waits = [replace(call(r, WORLD, LONG), sequence_id=6, record=10) for r in (0, 2)]
    found = judge([*waits, *([] if seen is None else [call(1, WORLD, seen)])], ranks, (WORLD,), 3)
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
    ranks = [Rank(r, idle=0.1, progress={"w": Progress(6, 4)}) for r in (0, 2)]
    ranks.append(Rank(1, ending=Ending.KILLED, signal=SIGKILL, progress={"w": Progress(5, 4)}))
    joined = [replace(call(r, WORLD, 0.3), **shown) for r in range(3)]
    waits = [replace(call(r, WORLD, 0.2), sequence_id=6, record=10, **shown) for r in (0, 2)]
    (found,) = causes(judge([*joined, *waits], ranks, (WORLD,), 3))
    assert (found.category.value, found.culprit_ranks, found.sequence_id) == ("rank_dead", (1,), number)
    (found,) = causes(judge(joined, ranks, (WORLD,), 3))
    assert (found.category.value, found.culprit_ranks, found.sequence_id) == ("rank_dead", (1,), 5)
