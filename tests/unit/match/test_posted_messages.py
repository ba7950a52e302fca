"""Sends and receives that no thread waits for: they make their rank wait nowhere, also if their peer has ended."""

from __future__ import annotations

from signal import SIGKILL

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, Progress, Rank, Signature
from tests.support.evidence import judge

WORLD = Group("w", "0", "default_pg", (0, 1, 2))
ENDED = Rank(2, ending=Ending.KILLED, signal=SIGKILL, progress={"w": Progress(0, 0)})


def message(operation: str, rank: int, peer: int, *, record: int, tag: int, age: float) -> Call:
    return Call(
        rank=rank, group="w", stream="p2p", sequence_id=record, record=record, state=CallState.IN_FLIGHT, age=age,
        signature=Signature(operation, ((8,),), ((8,),), ("Float",), ("Float",), peer=peer, tag=tag),
    )  # fmt: skip


def verdict(*calls: Call) -> list[Finding]:
    running = [Rank(rank, idle=0.5, progress={"w": Progress(0, 0)}) for rank in (0, 1)]
    return judge(calls, [*running, ENDED], [WORLD])


def test_messages_that_no_thread_waits_for_are_neither_the_fault_nor_its_consequence() -> None:
    posted = [message("send", 1, 2, record=number, tag=number, age=0.0) for number in range(1, 5)]
    waited = message("recv", 1, 2, record=5, tag=105, age=0.5)
    (found,) = verdict(*posted, waited)
    assert (found.category, found.culprit_ranks, found.p2p) == (Category.RANK_DEAD, (2,), (2, 1, 105, 0))


def test_a_dead_rank_for_which_no_thread_waits_is_named_without_a_call() -> None:
    (found,) = verdict(message("send", 1, 2, record=1, tag=0, age=0.0))
    assert (found.category, found.culprit_ranks, found.key) == (Category.RANK_DEAD, (2,), "ranks")
