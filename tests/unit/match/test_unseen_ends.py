"""Ranks that may be blocked although the evidence shows none of their calls in flight; ranks that ended early."""

from __future__ import annotations

from otel_fr.match import Call, CallState, Category, Ending, Group, Progress, Rank, Signature
from tests.support.evidence import judge
from tests.support.verdicts import causes

WORLD = Group("w", "0", "default_pg", (0, 1, 2, 3))
ACROSS = Group("d", "3", "dp", (1, 3))
CHAIN = Group("p", "5", "pp", (0, 1, 2))
SUM = Signature("all_reduce", ((4,),), ((4,),), ("Float",), ("Float",), "sum")


def waits(
    rank: int,
    group: Group,
    number: int,
    record: int,
    state: CallState = CallState.UNKNOWN,
    signature: Signature = SUM,
    pair: int = 0,
) -> Call:
    return Call(
        rank=rank,
        group=group.id,
        stream="collective" if signature is SUM else "p2p",
        sequence_id=number,
        record=record,
        signature=signature,
        state=state,
        pair_index=pair,
        age=9.0,
    )


def test_a_rank_whose_ends_are_not_shown_is_no_culprit_beside_a_dead_one() -> None:
    """Rank 1 waits for dead rank 0 in a call that both joined, so it counts as complete; rank 3 waits for rank 1."""
    ranks = [Rank(rank, progress={"d": Progress(3 + rank // 3, 0)}, idle=9.0) for rank in WORLD.ranks]
    ranks[0].progress, ranks[0].ending, ranks[0].signal = {}, Ending.KILLED, 9
    found = judge([waits(3, ACROSS, 4, 9)], ranks, (WORLD, ACROSS), 4)
    assert [(f.category, f.culprit_ranks) for f in causes(found)] == [(Category.RANK_DEAD, (0,))]

    for info in ranks[1:3]:  # where ends are shown, rank 1 has completed all its calls and did not go on
        info.progress = {"d": Progress(3, 3)}
    ranks[0].ending, ranks[0].signal = Ending.RUNNING, None
    found = judge([waits(3, ACROSS, 4, 9, CallState.IN_FLIGHT)], ranks, (WORLD, ACROSS), 4)
    assert [f.culprit_ranks for f in causes(found)] == [(1,)]


def test_a_rank_that_ended_early_is_the_culprit_and_no_message_to_it_is_misdirected() -> None:
    """Rank 0 ended before a message from rank 1, which so does not come to its message for rank 2."""
    to_first = Signature("send", ((4,),), ((4,),), ("Float",), ("Float",), peer=0, tag=0)
    from_second = Signature("recv", ((4,),), ((4,),), ("Float",), ("Float",), peer=1, tag=0)
    calls = [
        waits(1, CHAIN, 11, 9, CallState.IN_FLIGHT, to_first, 5),
        waits(2, CHAIN, 7, 9, CallState.IN_FLIGHT, from_second, 6),
        waits(3, WORLD, 2, 9, CallState.IN_FLIGHT),
    ]
    ranks = [Rank(rank, progress={"w": Progress(2 if rank == 3 else 1, 1)}, idle=9.0) for rank in WORLD.ranks]
    ranks[0].ending = Ending.CLEAN
    found = judge(calls, ranks, (WORLD, CHAIN), 4)
    assert [f.culprit_ranks for f in causes(found)] == [(0,)]
