"""Files with calls in flight, or with calls that cannot be read: what they show, and what is said where it is open."""

from __future__ import annotations

import json
import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import FAULT, HEALTHY, UNDECIDED, UNUSABLE, load
from otel_fr.analyze.assemble.only_open import SMALLEST_BUFFER
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.overview import View, short_verdict
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.match import Category
from tests.support.device_model import Machine, hybrid_groups, hybrid_programs
from tests.support.nccl_files import write_files
from tests.support.torch_files import BEGIN, SECOND, entry, group, one_missing, write
from tests.support.verdicts import causes

CULPRITS = (9, 14)


def two_failed_gpus() -> Machine:
    """16 ranks in two stages of two rows of four. Ranks 9 and 14 see no call complete from a moment on.

    Their GPUs do their part of a few calls more; then their hosts stop too, before the call that the others wait for.
    """
    rng = random.Random(5)
    programs = hybrid_programs(rng, hybrid_groups(4, 2, 2), 3, layer=["tp", "tp", "tp_dp", "tp", "tp_dp", "tp"] * 2)
    ends = {rank: len(programs[rank]) - 12 for rank in CULPRITS}
    for rank, end in ends.items():
        programs[rank] = programs[rank][:end]
    machine = Machine(
        programs,
        30,
        stuck={rank: end - 10 for rank, end in ends.items()},
        silent=ends,
    )
    machine.run(rng)
    return machine


@pytest.mark.parametrize("status", [True, False], ids=["with pg_status", "without"])
def test_ranks_whose_gpus_failed_are_named_although_nobody_waits_in_what_they_enqueued(
    tmp_path: Path, status: bool
) -> None:
    machine = two_failed_gpus()
    for rank in CULPRITS:
        places = {call.place for call in machine.issued[rank] if not call.completed}
        waited = {c.place for r, mine in machine.issued.items() if r not in CULPRITS for c in mine if not c.completed}
        assert not places & waited
    report = load(write_files(tmp_path, machine, status=status))
    found = causes(report.findings)
    assert sorted(finding.culprit_ranks for finding in found) == [(9,), (14,)]
    assert {(finding.category, finding.stuck_on) for finding in found} == {(Category.RANK_STUCK, "device")}
    assert any("holds only calls that had not completed" in note for note in report.undecided)


def open_calls(*numbers: int, first: int, **fields: object) -> list[dict[str, object]]:
    return [entry(first + at, "all_reduce", number, state="scheduled", **fields) for at, number in enumerate(numbers)]


def test_what_a_file_of_open_calls_leaves_out_has_completed(tmp_path: Path) -> None:
    """Rank 0 has 5 and 6 in flight, which its peers completed; they wait in 7. No file says which numbers completed."""
    files = {0: open_calls(5, 6, first=40), **{rank: open_calls(7, first=42) for rank in (1, 2)}}
    (cause,) = causes(load(write(tmp_path, files)).findings)
    assert (cause.culprit_ranks, cause.stuck_on, cause.sequence_id) == ((0,), "device", 5)


def test_full_buffers_of_open_calls_do_not_show_that_the_calls_before_completed(tmp_path: Path) -> None:
    """Each ring is as small as rings are and overwrote older calls, which may be in flight still."""
    late, others = range(5, 5 + SMALLEST_BUFFER), range(7, 7 + SMALLEST_BUFFER)
    files = {0: open_calls(*late, first=40), **{rank: open_calls(*others, first=42) for rank in (1, 2)}}
    report = load(write(tmp_path, files))
    assert report.findings == []
    assert not any("holds only calls" in note for note in report.undecided)


def test_fewer_open_calls_than_a_buffer_has_room_for_show_that_the_calls_before_completed(tmp_path: Path) -> None:
    """Hosts run ahead by a fixed number of calls, so all ranks have equally many in flight."""
    files = {0: open_calls(5, 6, 7, first=40), **{rank: open_calls(7, 8, 9, first=42) for rank in (1, 2)}}
    (cause,) = causes(load(write(tmp_path, files)).findings)
    assert (cause.culprit_ranks, cause.stuck_on, cause.sequence_id) == ((0,), "device", 5)


def test_a_rank_with_an_empty_file_has_completed_what_it_enqueued_but_not_everything(tmp_path: Path) -> None:
    report = load(write(tmp_path, {0: open_calls(7, first=42), 1: open_calls(7, first=42), 2: []}))
    assert (report.findings, report.status) == ([], UNDECIDED)
    assert report.open_calls is not None
    assert report.open_calls.suspects[0].ranks == (2,)
    assert "it is not known whether rank 2 joined it" in report.open_calls.suspects[0].reason
    assert any("how far rank 2 came" in text for text in report.open_calls.missing)


def joined_by_all(tmp_path: Path) -> Path:
    files = {rank: [*(entry(n, "all_reduce", n + 1) for n in range(3)), *open_calls(4, first=3)] for rank in range(3)}
    return write(tmp_path, files)


def test_calls_in_flight_for_an_unknown_time_are_undecided_in_every_form(tmp_path: Path) -> None:
    report = load(joined_by_all(tmp_path))
    assert report.status == UNDECIDED
    head = (
        "undecided: 3 calls in flight on ranks 0-2; the oldest is all_reduce number 4 of group default_pg (0) on rank 0"
    )
    text = to_text(report)
    assert text.startswith(f"{head}, enqueued at 2026-")
    assert "Nearest suspects:\n    all members joined all_reduce number 4" in text
    assert "since when the calls have been in flight" in text
    assert "No fault found" not in text
    assert "### undecided: 3 calls open" in to_markdown(report, View())
    assert '<header class="undecided"><h1>undecided: 3 calls in flight on ranks 0-2' in to_html(report, View())
    data = json.loads(to_json(report))
    assert (data["verdict"], data["incidents"]) == ("undecided", [])
    assert data["summary"].startswith(head)
    assert (data["open_calls"]["count"], data["open_calls"]["ranks"]) == (3, [0, 1, 2])
    assert data["open_calls"]["suspects"][0]["ranks"] == [0, 1, 2]


@pytest.mark.parametrize(("first", "ahead"), [(21, 1), (21, 4), (20, 2)])
def test_a_rank_that_has_not_enqueued_what_no_device_has_begun_is_the_first_suspect(
    tmp_path: Path, first: int, ahead: int
) -> None:
    done = [entry(number - 1, "all_reduce", number) for number in range(1, first)]
    others = [*done, *open_calls(*range(first, first + ahead), first=first - 1, time_discovered_started_ns=None)]
    report = load(write(tmp_path, {rank: done if rank == 5 else others for rank in range(8)}))
    assert report.status == UNDECIDED
    assert report.open_calls is not None
    suspect = report.open_calls.suspects[0]
    assert suspect.ranks == (5,)
    assert f"all_reduce number {first} " in suspect.reason


@pytest.mark.parametrize("after_ns", [10_000_000, -4_000_000], ids=["after", "before, by a coarse clock"])
def test_lag_just_before_the_files_were_written_is_no_fault(tmp_path: Path, after_ns: int) -> None:
    """Ranks 1 and 2 have completed what rank 0 has in flight."""
    joined_by_all(tmp_path)
    done = [entry(n, "all_reduce", n + 1) for n in range(4)]
    write(tmp_path / "ended", {1: done, 2: done}, **{"0": group("0", "default_pg", range(3))})
    for rank in (1, 2):
        (tmp_path / "ended" / f"trace_{rank}").replace(tmp_path / f"trace_{rank}")
    (tmp_path / "ended").rmdir()
    assert load(tmp_path).status == UNDECIDED
    for path in tmp_path.iterdir():
        os.utime(path, ns=(0, BEGIN + 3 * SECOND + after_ns))
    report = load(tmp_path)
    assert report.status == HEALTHY
    assert to_text(report).startswith("No fault found in 12 calls of ranks 0-2. 1 of them had not completed")
    assert json.loads(to_json(report))["verdict"] == "no_fault"
    assert json.loads(to_json(report))["open_calls"] is None


@pytest.mark.parametrize("seconds", [-0.004, 0.0, 0.3, 2.0, 8.0, 600.0, 10_000_000.0])
def test_a_call_that_was_enqueued_just_before_its_file_was_written_waits_for_nobody(
    tmp_path: Path, seconds: float
) -> None:
    """Of a job that runs, each rank writes its file at another moment. One copied later may have older calls."""
    enqueued = 1_800_000_000 * SECOND
    for file in one_missing(tmp_path, time_created_ns=enqueued).iterdir():
        os.utime(file, ns=(time.time_ns(), enqueued + round(seconds * 1e9)))
    report = load(tmp_path)
    found = [(one.category, one.culprit_ranks) for one in causes(report.findings)]
    assert (report.status, found) == ((HEALTHY, []) if seconds < 5 else (FAULT, [(Category.MISSING_RANK, (2,))]))


def damaged(record: int) -> dict[str, Any]:
    return {**entry(record, "all_reduce", record + 1), "state": {"a": 1}, "profiling_name": ["x"]}


@pytest.mark.parametrize("count", [1, 3])
def test_a_file_of_which_no_call_can_be_read_is_not_readable(tmp_path: Path, count: int) -> None:
    report = load(write(tmp_path, {rank: [damaged(n) for n in range(count)] for rank in range(2)}))
    assert report.status == UNUSABLE
    assert len(report.problems) == 2
    assert all("required fields are missing in" in problem.text for problem in report.problems)


def test_a_call_that_cannot_be_read_leaves_the_verdict_open(tmp_path: Path) -> None:
    calls = [entry(0, "all_reduce", 1), entry(1, "all_reduce", 2)]
    report = load(write(tmp_path / "ended", {0: calls, 1: [*calls, damaged(2)]}))
    assert (report.status, report.open_calls) == (UNDECIDED, None)
    said = "undecided: 1 call of rank 1 could not be read"
    assert short_verdict(report) == said
    assert f"{said}; no fault found in the 4 calls that could be read." in to_text(report)
    calls[1] = entry(1, "all_reduce", 2, state="scheduled")
    both = load(write(tmp_path / "open", {0: calls, 1: [*calls, damaged(2)]}))
    assert "2 calls in flight on ranks 0, 1" in to_text(both)
    for one in (report, both):
        assert one.status == UNDECIDED
        assert "entries of rank 1 lack required fields" in to_text(one)


def test_calls_in_flight_in_files_of_the_first_versions_are_open(tmp_path: Path) -> None:
    """They have neither a version nor process groups; their only recorder, NCCL's, shows which calls ended."""
    for rank in range(2):
        calls = [entry(0, "all_reduce", 1, state="scheduled")]
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps({"entries": calls}, 2))
    report = load(tmp_path)
    assert report.status == UNDECIDED
    assert "2 calls in flight on ranks 0, 1" in to_text(report)
