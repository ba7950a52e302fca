"""One message too many, or one too few: recognized by what each rank did in the steps before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import load
from tests.support.torch_files import OPEN, entry, write
from tests.support.verdicts import cause_incidents


def program(name: str, counts: list[int], *, collective_at_the_end: bool) -> list[dict[str, Any]]:
    """An all_reduce, then steps of so many messages, each ended by another; the last call is open."""
    calls = [entry(0, "all_reduce", 1)]
    messages = 0
    for step, count in enumerate(counts):
        for _ in range(count):
            messages += 1
            calls.append(entry(len(calls), name, step + 1, p2p_seq_id=messages))
        if collective_at_the_end or step < len(counts) - 1:
            calls.append(entry(len(calls), "all_reduce", step + 2))
    calls[-1].update(OPEN)
    return calls


def blamed(folder: Path, sent: list[int], received: list[int]) -> tuple[object, ...]:
    """Rank 0 has sent and gone on to the all_reduce of its last step; rank 1 waits for a message more."""
    files = {
        0: program("send 0->1", sent, collective_at_the_end=True),
        1: program("recv 1<-0", received, collective_at_the_end=False),
    }
    (incident,) = cause_incidents(load(write(folder, files)).incidents)
    return incident["category"], incident["culprit_ranks"]


def test_a_rank_that_takes_one_message_more_than_in_each_step_before_is_named(tmp_path: Path) -> None:
    assert blamed(tmp_path, [3, 3, 3], [3, 3, 4]) == ("unmatched_p2p", [1])


@pytest.mark.parametrize("sent", [[3, 3, 2], [3, 2, 3], [3, 3]], ids=["one less", "no rhythm", "too few steps"])
def test_else_the_rank_that_owes_the_other_half_is_named(sent: list[int], tmp_path: Path) -> None:
    assert blamed(tmp_path, sent, [*sent[:-1], sent[-1] + 1]) == ("unmatched_p2p", [0])


def made(*names: str) -> list[dict[str, Any]]:
    """These calls; the last one is open."""
    steps = [names[:n].count("broadcast") for n in range(1, len(names) + 1)]
    calls = [entry(n, name, steps[n], p2p_seq_id=n + 1) for n, name in enumerate(names)]
    calls[-1].update(OPEN)
    return calls


SEND, RECV = ("send 0->1", "send 1->0"), ("recv 0<-1", "recv 1<-0")
ASK, ANSWER = (SEND[0], RECV[0]), (RECV[1], SEND[1])
"""What rank 0 calls by turns, and what rank 1 does."""


@pytest.mark.parametrize(
    ("asks", "answers", "found"),
    [
        ([*ASK * 4], [*ANSWER * 3, RECV[1], RECV[1]], ("unmatched_p2p", [1])),
        ([*ASK * 3], [*ANSWER * 2, RECV[1], RECV[1]], ("deadlock", [0, 1])),
        ([*ASK * 3, RECV[0]], [*ANSWER * 3, RECV[1]], ("unmatched_p2p", [0])),
        (
            [*(SEND[0], SEND[0], RECV[0], RECV[0], "broadcast") * 4, SEND[0], SEND[0], RECV[0], RECV[0]],
            [*(RECV[1], RECV[1], SEND[1], SEND[1], "broadcast") * 4, RECV[1], RECV[1], SEND[1], "broadcast", RECV[1]],
            ("unmatched_p2p", [1]),
        ),
    ],
    ids=["an answer less", "too few turns", "an ask less", "an answer less in a step"],
)
def test_of_ranks_that_wait_for_each_other_the_one_that_left_out_a_message_is_named(
    asks: list[str], answers: list[str], found: tuple[str, list[int]], tmp_path: Path
) -> None:
    (incident,) = cause_incidents(load(write(tmp_path, {0: made(*asks), 1: made(*answers)})).incidents)
    assert (incident["category"], incident["culprit_ranks"]) == found
