"""Ranks that may be blocked although the evidence shows none of their calls in flight; ranks that ended early."""

from __future__ import annotations

from otel_fr.match import CallState, Category, Ending, Group, Progress
from tests.support.evidence import blamed, call, cause, message, rank

ACROSS = Group("d", "3", "dp", (1, 3))
CHAIN = Group("p", "5", "pp", (0, 1, 2))


def test_a_rank_whose_ends_are_not_shown_is_no_culprit_beside_a_dead_one() -> None:
    """Rank 1 waits for dead rank 0 in a call that both joined, so it counts as complete; rank 3 waits for rank 1."""
    ranks = [rank(r, counts={"d": (3 + r // 3, 0)}) for r in range(4)]
    ranks[0].progress, ranks[0].ending, ranks[0].signal = {}, Ending.KILLED, 9
    waits = call(3, 4, CallState.UNKNOWN, group=ACROSS)
    assert blamed([waits], ranks, ACROSS, size=4) == [(Category.RANK_DEAD, (0,))]

    for info in ranks[1:3]:  # where ends are shown, rank 1 has completed all its calls and did not go on
        info.progress = {"d": Progress(3, 3)}
    ranks[0].ending, ranks[0].signal = Ending.RUNNING, None
    assert cause([call(3, 4, group=ACROSS)], ranks, ACROSS, size=4).culprit_ranks == (1,)


def test_a_rank_that_ended_early_is_the_culprit_and_no_message_to_it_is_misdirected() -> None:
    """Rank 0 ended before a message from rank 1, which so does not come to its message for rank 2."""
    calls = [
        message(1, "send", 0, 11, group=CHAIN, pair_index=5),
        message(2, "recv", 1, 7, group=CHAIN, pair_index=6),
        call(3, 2),
    ]
    ranks = [rank(r, 2 if r == 3 else 1, 1) for r in range(4)]
    ranks[0].ending = Ending.CLEAN
    assert cause(calls, ranks, CHAIN, size=4).culprit_ranks == (0,)
