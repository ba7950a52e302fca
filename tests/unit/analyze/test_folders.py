"""Folders as people have them: files of public projects, PyTorch's own from a live job, and what else lies there."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import time
from pathlib import Path

import pytest

from otel_fr.analyze import FAULT, HEALTHY, UNDECIDED, UNUSABLE
from otel_fr.analyze import load as analyze
from otel_fr.analyze.output.markdown import to_markdown
from otel_fr.analyze.output.overview import View, open_sections, other_runs
from otel_fr.analyze.output.page import to_html
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.dumps.read import load
from otel_fr.incident import IncidentData
from otel_fr.ring import RecordState
from tests.support.paths import DUMPS
from tests.support.rings import RankRing, signature
from tests.support.torch_files import BEGIN, SECOND, entry, group, one_missing, write
from tests.support.verdicts import cause_incidents


def causes(folder: Path) -> list[IncidentData]:
    return cause_incidents(analyze(folder).incidents)


@pytest.mark.parametrize(
    "name",
    [
        "fr01_matched_allreduce_and_singletons",
        "fr03_two_broadcasts_coalesced",
        "fr05_uneven_reduce_scatter",
        "fr07_hook_shapes_legit",
        "fr09_alltoall_single_uneven_legit",
        "nt01_batched_send_recv_legit",
        "nt03_barrier_is_all_reduce_barrier_legit",
    ],
)
def test_healthy_files_of_others_show_no_fault(name: str) -> None:
    report = analyze(DUMPS / name)
    assert report.findings == []
    assert report.problems == []
    assert report.status == HEALTHY
    assert to_text(report).startswith("No fault found")


def test_a_file_that_is_not_there_is_evidence() -> None:
    (incident,) = causes(DUMPS / "nt05_timeout_dump_only_rank0")
    assert (incident["category"], incident["culprit_ranks"], incident["sequence_id"]) == ("missing_rank", [1], 2)
    report = analyze(DUMPS / "nt05_timeout_dump_only_rank0")
    assert "no file for rank 1: its progress is not known" in report.undecided


def test_a_group_is_matched_by_its_name_and_not_by_the_ranks_own_number() -> None:
    (incident,) = causes(DUMPS / "reduce_scatter_size_other_local_pg_id")
    assert (incident["category"], incident["sequence_id"]) == ("size_mismatch", 4)
    group = incident["process_group"]
    assert group is not None
    assert (group["name"], group["ranks"]) == ("3", [0, 1])


def test_a_receive_from_any_source_is_paired_with_the_only_sender() -> None:
    (incident,) = causes(DUMPS / "fr11_recv_any_source_size")
    assert incident["category"] == "size_mismatch"
    assert incident["values"] == {"2": "[[4]]", "5": "[[8]]"}


def test_torchcomms_calls_are_numbered_within_their_group() -> None:
    (incident,) = causes(DUMPS / "tc01_torchcomms_json_hang")
    assert (incident["category"], incident["culprit_ranks"], incident["waiting_ranks"]) == ("missing_rank", [1], [0])
    assert (incident["operation"], incident["sequence_id"]) == ("all_reduce", 4)


def test_torchcomms_counts_over_all_groups_but_numbers_do_not(tmp_path: Path) -> None:
    """Rank 0 works in a second group first, so that its counter is ahead in the one both share."""
    data = json.loads((DUMPS / "tc01_torchcomms_json_hang" / "rank_0.json").read_text())
    both = [entry for entry in data["entries"] if entry["retired"]]
    other = {**both[0], "process_group": ["side_comm", "gloo"], "pg_id": 1}
    data["pg_config"]["side_comm"] = {"name": "side_comm", "desc": "gloo", "ranks": "[0]"}
    shifted = [
        {**entry, "record_id": number, "collective_seq_id": number, "op_id": number}
        for number, entry in enumerate([other, other, *both])
    ]
    (tmp_path / "rank_0.json").write_text(json.dumps({**data, "entries": shifted}))
    (tmp_path / "rank_1.json").write_text(json.dumps({**data, "entries": both}))
    dump = load(tmp_path / "rank_0.json")
    numbers = [entry.sequence_id for entry in dump.entries if entry.group.startswith("main_comm")]
    assert numbers == list(range(len(both)))
    assert analyze(tmp_path).findings == []


def test_counts_of_a_rank_without_entries_are_ascribed_to_the_right_groups() -> None:
    dump = load(DUMPS / "nvrx_lock_gil_2nd" / "_dump_10")
    assert dump.entries == []
    counts = {group.description: (group.enqueued, group.completed) for group in dump.groups.values()}
    assert counts["TENSOR_MODEL_PARALLEL_GROUP"] == (31442, 31442)
    assert all(counts[name][0] is not None for name in counts)


def test_gzipped_files_and_single_files_are_read(tmp_path: Path) -> None:
    source = DUMPS / "nt05_timeout_dump_only_rank0" / "trace_0"
    (tmp_path / "trace_0.gz").write_bytes(gzip.compress(source.read_bytes()))
    for path in (tmp_path, tmp_path / "trace_0.gz", source):
        assert [incident["culprit_ranks"] for incident in causes(path)] == [[1]]


def joined(folder: Path, way: str) -> None:
    """All files of the folder become one."""
    paths = [folder / f"trace_{rank}" for rank in (2, 0, 1, 3)]
    parts = [pickle.loads(path.read_bytes()) for path in paths]
    whole = {
        "pickles": b"".join(path.read_bytes() for path in paths),
        "lines": "\n".join(map(json.dumps, parts)).encode(),
        "list": json.dumps(parts).encode(),
        "entries": pickle.dumps(
            {**parts[0], "entries": [one for part in parts[1:] + parts[:1] for one in part["entries"]]}
        ),
    }
    for path in paths:
        path.unlink()
    (folder / "trace_2").write_bytes(whole[way])


@pytest.mark.parametrize("way", ["pickles", "lines", "list", "entries"])
def test_files_of_several_ranks_in_one_are_not_taken_for_one_rank_s(tmp_path: Path, way: str) -> None:
    joined(one_missing(tmp_path), way)
    report = analyze(tmp_path)
    assert report.status in (UNUSABLE, UNDECIDED)
    assert "several flight-recorder files in one" in to_text(report)


def test_one_file_of_several_ranks_decides_nothing(tmp_path: Path) -> None:
    report = analyze(one_missing(tmp_path, 8) / "trace_2")
    assert report.status == UNDECIDED
    (missing,) = [items for title, items in open_sections(report) if title == "Missing evidence"]
    assert missing == ["the files of ranks 0, 1, 3-7"]


@pytest.mark.parametrize(("reason", "status"), [("recovered", HEALTHY), ("request", UNDECIDED)])
def test_the_only_file_is_enough_if_the_wait_of_its_rank_is_over(tmp_path: Path, reason: str, status: int) -> None:
    ring = RankRing(tmp_path / "rings", 0, 4)
    ring.call(signature("barrier"))
    ring.write(tmp_path / "files", reason=reason)
    assert analyze(tmp_path / "files").status == status


@pytest.mark.parametrize("seconds", [0, 601], ids=["copied", "copied with its times"])
def test_calls_in_rings_of_another_machine_are_not_young(tmp_path: Path, seconds: int) -> None:
    """Ranks wait in their first call since ten minutes. Storing in a mapped file does not change its time."""
    for rank in range(3):
        ring = RankRing(tmp_path, rank, 3)
        if rank != 1:
            ring.call(signature("barrier"), state=RecordState.IN_FLIGHT, age_s=600)
        copied = time.time() - seconds
        os.utime(ring.writer.path, (copied, copied))
    (cause,) = causes(tmp_path)
    assert (cause["category"], cause["culprit_ranks"]) == ("missing_rank", [1])


@pytest.mark.parametrize("size", [2**70, 10**5000], ids=["above 64 bits", "above what Python writes"])
def test_a_size_that_no_recorder_writes_counts_as_not_recorded(tmp_path: Path, size: int) -> None:
    write(tmp_path, {rank: [entry(0, "all_reduce", 1, sizes=[[size if rank == 1 else 4]])] for rank in range(3)})
    report = analyze(tmp_path)
    assert report.status == HEALTHY
    assert to_json(report)


def test_a_rank_whose_only_file_cannot_be_used_leaves_the_verdict_open(tmp_path: Path) -> None:
    write(tmp_path, {rank: [entry(0, "all_reduce", 1)] for rank in range(3)})
    assert analyze(tmp_path).status == HEALTHY
    (tmp_path / "trace_9").write_bytes(b"broken")
    assert analyze(tmp_path).status == HEALTHY, "every rank has a file"
    (tmp_path / "trace_1").write_bytes(b"broken")
    found = analyze(tmp_path)
    assert (found.status, found.unread) == (UNDECIDED, [1])


def test_what_is_no_file_of_a_rank_leaves_the_verdict_as_it_is(tmp_path: Path) -> None:
    """Such as the job's log beside the files, or an older file of another rank."""
    write(
        tmp_path, {rank: [entry(0, "all_reduce", 1)] for rank in range(3)}, **{"0": group("0", "default_pg", range(4))}
    )
    (tmp_path / "job.log").write_text("step 1")
    write(tmp_path / "older", {2: [entry(0, "all_reduce", 1, time_created_ns=BEGIN - 3_600 * SECOND)]})
    (tmp_path / "older" / "trace_2").rename(tmp_path / "old_trace_2")
    found = analyze(tmp_path)
    assert (found.status, found.absent, found.unread) == (HEALTHY, [3], [])
    assert len(found.problems) == 2


def test_folders_of_one_job_are_judged_together(tmp_path: Path) -> None:
    """Such as one of each host."""
    for rank in range(4):
        (tmp_path / f"host_{rank % 2}").mkdir(exist_ok=True)
        one_missing(tmp_path / "all").joinpath(f"trace_{rank}").rename(tmp_path / f"host_{rank % 2}" / f"trace_{rank}")
    (finding,) = analyze([tmp_path / "host_0", tmp_path / "host_1", tmp_path / "host_0"]).findings
    assert finding.culprit_ranks == (2,)


def test_a_link_to_another_folder_is_not_followed_and_said(tmp_path: Path) -> None:
    files, elsewhere = tmp_path / "files", tmp_path / "elsewhere"
    write(files / "host_0", {rank: [entry(0, "all_reduce", 1)] for rank in range(3)})
    elsewhere.mkdir()
    (files / "host_0" / "trace_2").rename(elsewhere / "trace_2")
    (files / "host_1").symlink_to(elsewhere)
    (files / "newest").symlink_to("host_0")
    found = analyze(files)
    assert [(problem.path, problem.text) for problem in found.problems] == [
        (str(files / "host_1"), "a link to a folder: it was not read; name the folder")
    ]
    assert (found.status, found.unread) == (UNDECIDED, [2])
    assert analyze([files, elsewhere]).absent == []


def test_a_link_does_not_take_the_place_of_its_file(tmp_path: Path) -> None:
    """Its name says another rank than the file's."""
    one_missing(tmp_path)
    (tmp_path / "trace_10").symlink_to("trace_0")
    found = analyze(tmp_path)
    assert found.run is not None
    assert [dump.rank for dump in found.run.dumps] == [0, 1, 2, 3]
    assert [(Path(one.path).name, "link" in one.text) for one in found.problems] == [("trace_10", True)]
    assert len(analyze([tmp_path, tmp_path]).problems) == 2


def test_a_fault_in_an_older_run_is_said_where_the_newest_has_none(tmp_path: Path) -> None:
    one_missing(tmp_path / "a")
    healthy = [entry(n, "all_reduce", n + 1, time_created_ns=BEGIN + (3600 + n) * SECOND) for n in range(2)]
    write(tmp_path / "b", dict.fromkeys(range(4), healthy))
    report = analyze([tmp_path / "a", tmp_path / "b"])
    assert (report.status, report.older_faults[0].culprit_ranks) == (FAULT, (2,))
    shown = json.loads(to_json(report))
    assert (shown["verdict"], shown["incidents"]) == ("fault", [])
    assert [one["culprit_ranks"] for one in shown["older_incidents"]] == [[2]]
    assert analyze(tmp_path / "b").status == HEALTHY
    assert any("missing_rank" in line for line in other_runs(report))
    assert all("rank 2 did not join" in form(report, View()) for form in (to_text, to_markdown, to_html))


def test_the_prefix_chooses_files_and_two_files_of_a_rank_count_once(tmp_path: Path) -> None:
    for name in ("trace_0", "trace_1"):
        shutil.copy(DUMPS / "fr01_matched_allreduce_and_singletons" / name, tmp_path / name)
    shutil.copy(DUMPS / "nt05_timeout_dump_only_rank0" / "trace_0", tmp_path / "other_0")
    assert analyze(tmp_path, prefix="trace_").status == HEALTHY
    assert analyze(tmp_path, prefix="other_").status == FAULT
    assert analyze(tmp_path, prefix="none_").status == UNUSABLE
    both = analyze(tmp_path)
    assert [Path(problem.path).name for problem in both.problems] in (["trace_0"], ["other_0"])
    assert "newer or fuller file of rank 0" in both.problems[0].text
