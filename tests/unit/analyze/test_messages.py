"""Sends and receives of files that do not number them: paired as they were, or not at all."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.analyze import load
from otel_fr.analyze.assemble.message_alignment import PairEnd, SharedCollectives, align
from otel_fr.dumps.columns import COMPLETED, IN_FLIGHT
from tests.support.torch_files import entry, write

STEPS = 40


def messages(rank: int, peer: int, *, first: int, last: int, per_step: int, sends: bool, **end: Any) -> list[Any]:
    """Calls ``first`` to ``last`` of a rank that exchanges messages and an all_reduce in each step."""
    calls = []
    for number in range(first, last):
        step, place = divmod(number, per_step + 1)
        if place == per_step:
            calls.append(entry(number, "all_reduce", step + 1))
        else:
            name = f"send {rank}->{peer}" if sends else f"recv {rank}<-{peer}"
            calls.append(entry(number, name, step, p2p_seq_id=step * per_step + place + 1))
    calls[-1].update(end, **({"retired": False} if end else {}))
    return calls


OPEN: dict[str, Any] = {"state": "scheduled", "time_discovered_completed_ns": None}


def pair_of_ranks(folder: Path, sent: int, received: int, ring: int = 20, **end: Any) -> Path:
    """Rank 0 has sent, rank 1 has received up to these calls; its last is ``end``. Each ring holds the last ones."""
    return write(
        folder,
        {
            0: messages(0, 1, first=sent - ring, last=sent, per_step=2, sends=True),
            1: messages(1, 0, first=received - ring, last=received, per_step=2, sends=False, **end),
        },
    )


def test_a_message_that_was_sent_and_not_yet_taken_is_no_fault_in_rings_that_wrapped(tmp_path: Path) -> None:
    """The send has completed, for small messages do so at once; the receive has not."""
    report = load(pair_of_ranks(tmp_path, 101, 101, **OPEN))
    assert report.findings == []


def test_a_message_that_was_never_sent_is_reported_in_rings_that_wrapped(tmp_path: Path) -> None:
    """The collectives that both have recorded show how many messages there were."""
    report = load(pair_of_ranks(tmp_path, 100, 101, **OPEN))
    (incident,) = report.incidents
    assert (incident["category"], incident["culprit_ranks"], incident["waiting_ranks"]) == ("unmatched_p2p", [0], [1])


@pytest.mark.parametrize("sent", [100, 101])
def test_without_collectives_in_common_no_culprit_is_named(sent: int, tmp_path: Path) -> None:
    files = {
        0: [entry(n, "send 0->1", 0, p2p_seq_id=n + 1) for n in range(sent - 20, sent)],
        1: [entry(n, "recv 1<-0", 0, p2p_seq_id=n + 1) for n in range(81, 101)],
    }
    files[1][-1].update(OPEN, retired=False)
    report = load(write(tmp_path, files))
    assert report.findings == []
    (note,) = [note for note in report.undecided if note.startswith("messages from rank 0 to rank 1")]
    assert "it is not known which messages" in note


def test_messages_of_files_without_completed_calls_are_not_counted(tmp_path: Path) -> None:
    """PyTorch's "only active" files: rank 0's small sends completed and are not in its file, rank 1's receive is."""
    files = {
        0: [entry(n, "all_reduce", n, **OPEN, retired=False) for n in (90, 93)],
        1: [
            entry(90, "all_reduce", 90, **OPEN, retired=False),
            entry(92, "all_reduce", 93, **OPEN, retired=False),
            entry(94, "recv 1<-0", 93, p2p_seq_id=7, **OPEN, retired=False),
        ],
    }
    report = load(write(tmp_path, files))
    assert [one for one in report.findings if one.p2p] == []
    assert [note for note in report.undecided if note.startswith("messages from rank 0 to rank 1")]


@pytest.mark.parametrize("taken", [8, 9])
def test_calls_open_on_both_sides_need_not_be_one_message(taken: int, tmp_path: Path) -> None:
    """Rank 1 may be some small messages behind: sizes that differ prove nothing, and neither end lacks the other."""
    files = {
        0: [entry(n, "send 0->1", 0, p2p_seq_id=n + 1, sizes=[[8]]) for n in range(81, 101)],
        1: [entry(n, "recv 1<-0", 0, p2p_seq_id=n + 1, sizes=[[taken if n == 100 else 8]]) for n in range(81, 101)],
    }
    for calls in files.values():
        calls[-1].update(OPEN, retired=False)
    assert load(write(tmp_path, files)).findings == []


def test_messages_that_completed_and_do_not_fit_are_reported(tmp_path: Path) -> None:
    files = {0: [entry(0, "send 0->1", 0, sizes=[[8]])], 1: [entry(0, "recv 1<-0", 0, sizes=[[9]])]}
    (incident,) = load(write(tmp_path, files)).incidents
    assert incident["category"] == "size_mismatch"


@given(st.integers(0, 2**32), st.booleans())
def test_what_is_paired_belongs_together(seed: int, eager: bool) -> None:
    """A sender and a receiver with messages and collectives in one order, each with the end of its record."""
    rng = random.Random(seed)
    kinds = [rng.choice("mmc") for _ in range(rng.randint(1, STEPS))]
    sent = rng.randint(0, len(kinds))
    received = rng.randint(0, sent if "c" not in kinds[min(sent, len(kinds)) :] else min(sent + 1, len(kinds)))
    halves: list[PairEnd] = []
    places: list[SharedCollectives] = []
    truths: list[list[int]] = []
    for issued, other in ((sent, received), (received, sent)):
        first = rng.randint(0, issued)
        calls = [(number, sum(k == "m" for k in kinds[:number])) for number in range(issued) if kinds[number] == "m"]
        kept = [(number, truth) for number, truth in calls if number >= first]
        is_sender = not halves
        done = [n < min(issued, other) - rng.randint(0, 1) or (eager and is_sender and n < issued - 1) for n, _ in kept]
        collectives = [number for number in range(first, issued) if kinds[number] == "c"]
        keys = [sum(k == "c" for k in kinds[:number]) for number in collectives]
        state = np.array([COMPLETED if d else IN_FLIGHT for d in done], np.int8)
        halves.append(PairEnd(first > 0, np.array([n for n, _ in kept], np.int64), state))
        places.append(SharedCollectives(np.array(keys, np.int64), np.array(collectives, np.int64)))
        truths.append([truth for _, truth in kept])
    found = align(halves[0], halves[1], places[0], places[1])
    if found is None or not found.is_sure:
        return
    sends = dict(zip(found.sends.tolist(), truths[0], strict=True))
    receives = dict(zip(found.receives.tolist(), truths[1], strict=True))
    for number in (sends.keys() & receives.keys()) - {-1}:
        assert sends[number] == receives[number]
    if not (halves[0].partial or halves[1].partial):
        assert -1 not in {*sends, *receives}
