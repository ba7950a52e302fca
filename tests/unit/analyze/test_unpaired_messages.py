"""Open messages whose other half is not known, because older calls are missing from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otel_fr.analyze import load
from tests.support.torch_files import entry, group, write

OPEN = {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
GROUPS = {
    "0": group("0", "default_pg", range(4)),
    "1": group("1", "pp", [0, 2]),
    "2": group("2", "pp", [1, 3]),
    "3": group("3", "dp", [2, 3]),
}


def message(record: int, name: str, pg: str, **more: Any) -> dict[str, Any]:
    return entry(record, name, 0, p2p_seq_id=record + 1, process_group=(pg, GROUPS[pg]["desc"]), **more)


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
    report = load(write(tmp_path, files, **GROUPS))
    assert report.incidents == []
    assert any(note.startswith("messages from rank 0 to rank 2") for note in report.undecided)


def test_the_end_of_a_batch_whose_members_were_overwritten_is_not_reported(tmp_path: Path) -> None:
    end = entry(12, "coalesced", 0, p2p_seq_id=9, is_p2p=True, sizes=[])
    calls = [end, *(entry(13 + number, "all_reduce", 4 + number) for number in range(2))]
    report = load(write(tmp_path, {0: calls, 1: calls}))
    assert report.incidents == []
    assert not any("without their peer" in note for note in report.undecided)
