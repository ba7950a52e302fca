"""One message too many, or one too few: recognized by what each rank did in the steps before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import load
from tests.support.torch_files import entry, write
from tests.support.verdicts import cause_incidents

OPEN = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}


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
