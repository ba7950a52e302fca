"""Sends and receives of files that do not number them, or hold a part of them: paired as they were, or not at all."""

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
from tests.support.torch_files import OPEN, entry, group, write

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
    calls[-1].update(end)
    return calls


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
    files[1][-1].update(OPEN)
    report = load(write(tmp_path, files))
    assert report.findings == []
    (note,) = [note for note in report.undecided if note.startswith("messages from rank 0 to rank 1")]
    assert "it is not known which messages" in note


def test_messages_of_files_without_completed_calls_are_not_counted(tmp_path: Path) -> None:
    """PyTorch's "only active" files: rank 0's small sends completed and are not in its file, rank 1's receive is."""
    files = {
        0: [entry(n, "all_reduce", n, **OPEN) for n in (90, 93)],
        1: [
            entry(90, "all_reduce", 90, **OPEN),
            entry(92, "all_reduce", 93, **OPEN),
            entry(94, "recv 1<-0", 93, p2p_seq_id=7, **OPEN),
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
        calls[-1].update(OPEN)
    assert load(write(tmp_path, files)).findings == []


def test_messages_that_completed_and_do_not_fit_are_reported(tmp_path: Path) -> None:
    files = {0: [entry(0, "send 0->1", 0, sizes=[[8]])], 1: [entry(0, "recv 1<-0", 0, sizes=[[9]])]}
    (incident,) = load(write(tmp_path, files)).incidents
    assert incident["category"] == "size_mismatch"


PIPELINES = {
    "0": group("0", "default_pg", range(4)),
    "1": group("1", "pp", [0, 2]),
    "2": group("2", "pp", [1, 3]),
    "3": group("3", "dp", [2, 3]),
}


def message(record: int, name: str, pg: str, **more: Any) -> dict[str, Any]:
    return entry(record, name, 0, p2p_seq_id=record + 1, process_group=(pg, PIPELINES[pg]["desc"]), **more)


def test_a_rank_in_a_message_that_cannot_be_paired_is_no_culprit_of_what_waits_behind_it(tmp_path: Path) -> None:
    """Stage 1 of one pipeline waits for a message, so it does not come to the all_reduce with the other pipeline's."""
    files = {
        0: [message(n, "send 0->1", "1") for n in range(80, 100)],
        2: [message(n, "recv 1<-0", "1") for n in range(85, 101)],
        1: [message(n, "send 0->1", "2") for n in range(80, 100)],
        3: [message(n, "recv 1<-0", "2") for n in range(80, 100)],
    }
    files[2][-1].update(OPEN)
    files[3].append(entry(100, "all_reduce", 7, process_group=("3", "dp"), **OPEN))
    files[2].insert(0, entry(84, "all_reduce", 6, process_group=("3", "dp")))
    report = load(write(tmp_path, files, **PIPELINES))
    assert report.incidents == []
    assert any(note.startswith("messages from rank 0 to rank 2") for note in report.undecided)


def test_the_end_of_a_batch_whose_members_were_overwritten_is_not_reported(tmp_path: Path) -> None:
    end = entry(12, "coalesced", 0, p2p_seq_id=9, is_p2p=True, sizes=[])
    calls = [end, *(entry(13 + number, "all_reduce", 4 + number) for number in range(2))]
    report = load(write(tmp_path, {0: calls, 1: calls}))
    assert report.incidents == []
    assert not any("without their peer" in note for note in report.undecided)


def test_a_list_whose_first_pieces_were_overwritten_is_not_compared(tmp_path: Path) -> None:
    whole = [
        entry(10, "_broadcast_oop", 5, state="scheduled", sizes=[[3]]),
        entry(11, "_broadcast_oop", 5, state="scheduled", sizes=[[4]]),
        entry(12, "ALLGATHER_coalesced", 5, sizes=[]),
        entry(13, "all_reduce", 6),
    ]
    assert load(write(tmp_path, {0: whole, 1: whole[1:]})).findings == []


def test_members_of_a_batch_whose_completed_end_was_left_out_are_not_waiting(tmp_path: Path) -> None:
    """PyTorch's "only active" files: members of batches are never marked completed, their ends are, and go."""
    batch = [
        entry(3, "send 1->0", 0, state="scheduled", p2p_seq_id=1),
        entry(4, "recv 1<-0", 0, state="scheduled", p2p_seq_id=1),
    ]
    files = {1: batch, 2: []}
    assert load(write(tmp_path, files, **{"0": group("0", "default_pg", [0, 1, 2])})).findings == []


def test_such_members_are_not_waiting_where_the_first_call_of_all_is_one_of_them(tmp_path: Path) -> None:
    """The numbers of the calls show that others were left out between them."""
    sends = [entry(n, "send 0->1", 0, state="scheduled", p2p_seq_id=n // 2 + 1) for n in (0, 1, 3, 4)]
    receives = [entry(n, "recv 1<-0", 0, state="scheduled", p2p_seq_id=n // 2 + 1) for n in (0, 1)]
    report = load(write(tmp_path, {0: sends, 1: receives}))
    assert report.findings == []
    assert any("does not contain every call" in note for note in report.undecided)


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
