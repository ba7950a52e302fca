"""Batches that a file holds only in part: the ring wrapped inside of one, or completed calls were left out."""

from __future__ import annotations

from pathlib import Path

from otel_fr.analyze import load
from tests.support.torch_files import entry, group, write


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
