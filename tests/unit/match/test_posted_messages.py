"""Sends and receives that no thread waits for: they make their rank wait nowhere, also if their peer has ended."""

from __future__ import annotations

from signal import SIGKILL

from otel_fr.match import Call, Category, Ending, Finding
from tests.support.evidence import judge, message, rank

ENDED = rank(2, 0, ending=Ending.KILLED, signal=SIGKILL, idle=None)


def verdict(*calls: Call) -> list[Finding]:
    return judge(calls, [rank(0, 0, idle=0.5), rank(1, 0, idle=0.5), ENDED])


def test_messages_that_no_thread_waits_for_are_neither_the_fault_nor_its_consequence() -> None:
    posted = [message(1, "send", 2, number, tag=number, age=0.0) for number in range(1, 5)]
    waited = message(1, "recv", 2, 5, tag=105, age=0.5)
    (found,) = verdict(*posted, waited)
    assert (found.category, found.culprit_ranks, found.p2p) == (Category.RANK_DEAD, (2,), (2, 1, 105, 0))


def test_a_dead_rank_for_which_no_thread_waits_is_named_without_a_call() -> None:
    (found,) = verdict(message(1, "send", 2, age=0.0))
    assert (found.category, found.culprit_ranks, found.key) == (Category.RANK_DEAD, (2,), "ranks")
