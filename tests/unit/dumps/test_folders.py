"""What lies in folders: names of files, rings of killed ranks, early schemas, and files that are none of ours."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from otel_fr.analyze import FAULT, HEALTHY
from otel_fr.analyze import load as analyze
from otel_fr.analyze.output.text import to_text
from otel_fr.dumps.files import MAX_DEPTH, rank_of_name
from otel_fr.dumps.model import Problem
from otel_fr.dumps.read import load, load_folder
from otel_fr.dumps.safe_parse import UnreadableDump
from otel_fr.ring import RecordState
from tests.support.paths import DUMPS
from tests.support.rings import RankRing, signature

HANG = DUMPS / "nt05_timeout_dump_only_rank0"
STEP = signature("all_reduce", reduce_op="sum")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("trace_0", 0),
        ("rank_1.json", 1),
        ("_dump_9", 9),
        ("trace_3.json.gz", 3),
        ("host12_rank_3.pickle", 3),
        ("nccl_trace_rank_3_abc", 3),
        ("nccl_trace_rank_3_of_16", 3),
        ("rank3", 3),
        ("local_rank_2_rank_10.pkl", 10),
        ("node3_trace_7", 7),
        ("gpu3-host", 3),
        ("nameless", None),
    ],
)
def test_the_rank_is_found_wherever_it_stands_in_the_name(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


def test_the_number_behind_the_prefix_is_the_rank() -> None:
    assert rank_of_name("job7_3_node_12", "job7_") == 3


def test_a_name_with_several_numbers_is_a_problem_that_says_what_to_do(tmp_path: Path) -> None:
    shutil.copy(HANG / "trace_0", tmp_path / "host1_a2_x")
    with pytest.raises(UnreadableDump, match="several numbers; rename it so that it ends with the rank"):
        rank_of_name("host1_a2_x")
    dumps, problems = load_folder(tmp_path)
    assert dumps == []
    assert [Path(problem.path).name for problem in problems] == ["host1_a2_x"]


def test_a_folder_of_a_rank_names_its_file(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank_{rank}").mkdir()
        shutil.copy(
            DUMPS / "fr01_matched_allreduce_and_singletons" / f"trace_{rank}", tmp_path / f"rank_{rank}" / "trace"
        )
    assert [dump.rank for dump in load_folder(tmp_path)[0]] == [0, 1]
    assert analyze(tmp_path).status == HEALTHY


def test_what_is_no_dump_is_passed_over_in_one_sentence(tmp_path: Path) -> None:
    shutil.copy(HANG / "trace_0", tmp_path / "trace_0")
    (tmp_path / "train.log").write_text("step 1\n" * 1000)
    (tmp_path / "loss_3.png").write_bytes(b"\x89PNG\r\n\x1a\n" + random.Random(0).randbytes(5000))
    (tmp_path / "config.json").write_text(json.dumps({"lr": [1, 2]}))
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(5000))
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(5000))
    (tmp_path / "logs.tar.gz").write_bytes(gzip.compress(b"rank 4 looked odd" * 100))
    (tmp_path / "state.pkl").write_bytes(pickle.dumps({"epoch": 3, "random": random.Random(1)}))
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / "notes-2.md").write_text("The files have `pg_config` and `collective_seq_id`.")
    (tmp_path / ".trace_5.77.tmp").write_bytes(b"half")
    # These might have been dumps, so their loss is reported.
    shutil.copy(HANG / "trace_0", tmp_path / "nameless")
    (tmp_path / "trace_1").write_bytes((HANG / "trace_0").read_bytes()[:300])
    (tmp_path / "trace_2").write_bytes(b"")
    dumps, problems = load_folder(tmp_path)
    assert [dump.rank for dump in dumps] == [0]
    said = {Path(problem.path).name: problem.text for problem in problems}
    assert set(said) == {"trace_1", "trace_2", "nameless", tmp_path.name}
    assert said[tmp_path.name] == (
        "9 files are not flight-recorder files and were skipped (_SUCCESS, config.json, logs.tar.gz, ...)"
    )
    assert said["trace_1"].startswith("truncated")
    assert said["trace_2"].startswith("empty")
    assert "name must end with the rank" in said["nameless"]


def test_progress_is_reported_file_by_file_up_to_all(tmp_path: Path) -> None:
    for rank in range(3):
        shutil.copy(HANG / "trace_0", tmp_path / f"trace_{rank}")
    (tmp_path / "notes.txt").write_text("none")
    reported: list[tuple[int, int]] = []
    load_folder(tmp_path, progress=lambda done, of: reported.append((done, of)))
    assert reported[-1] == (4, 4)
    assert reported == sorted(reported)


# Rings.


def test_rings_as_they_lie_are_read_as_if_dumped(tmp_path: Path) -> None:
    rings = tmp_path / "rings"
    for rank in range(3):
        ring = RankRing(rings, rank, 3)
        for _ in range(2):
            ring.call(STEP, age_s=30)
        if rank != 1:
            ring.call(STEP, state=RecordState.IN_FLIGHT, age_s=20)
        ring.write(tmp_path / "files")
    raw, dumped = analyze(rings), analyze(tmp_path / "files")
    assert raw.status == dumped.status == FAULT
    assert [f.key for f in raw.findings] == [f.key for f in dumped.findings]
    assert [f.culprit_ranks for f in raw.findings] == [(1,)]
    (quick,) = {tuple(entry._replace(age=None) for entry in dump.entries) for dump in raw.run.dumps[:1]}  # type: ignore[union-attr]
    (other,) = {tuple(entry._replace(age=None) for entry in dump.entries) for dump in dumped.run.dumps[:1]}  # type: ignore[union-attr]
    assert quick == other


def test_of_a_ring_and_a_file_of_one_rank_the_newer_counts(tmp_path: Path) -> None:
    ring = RankRing(tmp_path, 0, 1)
    ring.call(STEP, age_s=3)
    ring.write(tmp_path, stack="File ...")
    report = analyze(tmp_path)
    assert [Path(dump.path).name for dump in report.run.dumps] == ["trace_0"]  # type: ignore[union-attr]
    for age in (-20, -30):
        ring.call(STEP, age_s=age)
    report = analyze(tmp_path)
    (dump,) = report.run.dumps  # type: ignore[union-attr]
    assert (dump.facts["reason"], len(dump.entries)) == ("ring", 3)


def test_damaged_rings_are_reported_and_cost_nothing_else(tmp_path: Path) -> None:
    ring = RankRing(tmp_path / "rings", 0, 1)
    ring.call(STEP)
    whole = Path(ring.writer.path).read_bytes()
    rnd = random.Random(5)
    for number in range(40):
        damaged = bytearray(whole[: rnd.randrange(8, len(whole))] if number % 2 else whole)
        for _ in range(20):
            damaged[rnd.randrange(8, min(len(damaged), 8192))] = rnd.randrange(256)
        (tmp_path / f"ring_{number}").write_bytes(damaged)
    dumps, problems = load_folder(tmp_path)
    assert len(dumps) + len(problems) == 41
    assert any(dump.path == str(ring.writer.path) for dump in dumps)


# Sets of files.


def copies(folder: Path, source: str, names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        if (DUMPS / source / f"trace_{rank}").exists():
            shutil.copy(DUMPS / source / f"trace_{rank}", folder / names.format(rank))


def later(path: Path, seconds: int) -> None:
    """The same file, every call of it that much later."""
    data: dict[str, Any] = pickle.loads(path.read_bytes())
    for entry in data["entries"]:
        entry["time_created_ns"] += seconds * 10**9
    path.write_bytes(pickle.dumps(data, 2))


def test_two_attempts_in_two_folders_are_two_runs_and_the_newer_is_judged(tmp_path: Path) -> None:
    copies(tmp_path / "attempt_0", "nt05_timeout_dump_only_rank0", "trace_{}")
    copies(tmp_path / "attempt_1", "fr01_matched_allreduce_and_singletons", "trace_{}")
    for rank in range(2):
        later(tmp_path / "attempt_1" / f"trace_{rank}", 10**8)
    report = analyze(tmp_path)
    assert (report.status, report.findings) == (FAULT, []), to_text(report)
    assert {Path(dump.path).parent.name for dump in report.run.dumps} == {"attempt_1"}  # type: ignore[union-attr]
    assert [len(other.dumps) for other in report.others] == [1]
    later(tmp_path / "attempt_0" / "trace_0", 10**9)
    assert analyze(tmp_path).status == FAULT


def test_two_attempts_in_one_folder_are_never_mixed(tmp_path: Path) -> None:
    """The newer one has only rank 0; rank 1's file of the older one would be held against it."""
    copies(tmp_path, "fr01_matched_allreduce_and_singletons", "old_{}")
    copies(tmp_path, "nt05_timeout_dump_only_rank0", "new_{}")
    later(tmp_path / "new_0", 10**9)
    report = analyze(tmp_path)
    assert [Path(dump.path).name for dump in report.run.dumps] == ["new_0"]  # type: ignore[union-attr]
    said = {Path(problem.path).name: problem.text for problem in report.problems}
    assert "newer or fuller file of rank 0" in said["old_0"]
    assert "--prefix" in said["old_1"]


def test_files_of_hosts_that_name_them_differently_are_one_run(tmp_path: Path) -> None:
    for rank in range(2):
        source = DUMPS / "fr01_matched_allreduce_and_singletons" / f"trace_{rank}"
        (tmp_path / f"host{rank}").mkdir()
        shutil.copy(source, tmp_path / f"host{rank}" / f"host{rank}_rank_{rank}.pickle")
    report = analyze(tmp_path)
    assert [dump.rank for dump in report.run.dumps] == [0, 1]  # type: ignore[union-attr]
    assert report.problems == []


# Early schemas.


def early(rank: int, local: int = 0, number: int = 3) -> dict[str, Any]:
    entries = [
        {
            "pg_id": local, "seq_id": place + 1, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + place, "input_sizes": [[4]], "output_sizes": [[4]],
            "state": "completed", "retired": True, "frames": [],
        }
        for place in range(number)
    ]  # fmt: skip
    return {"version": "1.1", "entries": entries}


def test_files_of_pytorch_before_it_named_groups_are_read(tmp_path: Path) -> None:
    for rank in range(2):
        data = early(rank)
        if rank == 0:
            data["entries"].append({**data["entries"][-1], "seq_id": 4, "state": "started", "retired": False})
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(data, 2))
    report = analyze(tmp_path)
    assert [(f.culprit_ranks, f.sequence_id, f.operation) for f in report.findings] == [((1,), 4, "all_reduce")]


def test_groups_that_only_the_rank_itself_numbered_are_not_compared(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(early(rank, local=1, number=2 + rank), 2))
    report = analyze(tmp_path)
    assert report.findings == []
    assert any("does not name process groups" in note for note in report.undecided)


def test_groups_that_only_their_members_name_are_compared(tmp_path: Path) -> None:
    """Version 1.4 says who is in which of the rank's own numbers."""
    for rank in range(4):
        data = early(rank, local=1 + rank // 2, number=2 + (rank in (0, 2, 3)))
        data["entries"] = [{"record_id": n, "op_id": n + 1, **entry} for n, entry in enumerate(data["entries"])]
        if rank == 0:
            data["entries"][-1].update(state="started", retired=False)
        pairs = {1: [0, 1], 2: [2, 3]} if rank < 2 else {2: [2, 3], 1: [0, 1]}
        data |= {"version": "1.4", "pg_config": {0: [0, 1, 2, 3], **pairs}}
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(data, 2))
    report = analyze(tmp_path)
    assert [(f.culprit_ranks, f.sequence_id) for f in report.findings] == [((1,), 3)]
    assert not any("does not name" in note for note in report.undecided)


def test_of_two_early_groups_with_the_same_members_none_is_compared(tmp_path: Path) -> None:
    for rank in range(2):
        data = early(rank, local=1 + rank, number=2 + rank)
        data |= {"version": "1.4", "pg_config": {0: [0, 1], 1: [0, 1], 2: [0, 1]}}
        (tmp_path / f"trace_{rank}").write_bytes(pickle.dumps(data, 2))
    assert analyze(tmp_path).findings == []


def test_the_list_that_the_very_first_version_wrote_is_read(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(pickle.dumps(early(0)["entries"], 2))
    assert [entry.sequence_id for entry in load(tmp_path / "trace_0").entries] == [1, 2, 3]


@pytest.mark.parametrize("backend", ["nccl", "gloo", "xccl", "ncclx", "hccl", "newone"])
def test_the_backend_is_kept_whatever_it_is(tmp_path: Path, backend: str) -> None:
    data = pickle.loads((HANG / "trace_0").read_bytes())
    for entry in data["entries"]:
        entry["profiling_name"] = f"{backend}:{entry['profiling_name'].partition(':')[2]}"
    (tmp_path / "trace_0").write_bytes(pickle.dumps(data, 2))
    (entry, *_) = load(tmp_path / "trace_0").entries
    assert (entry.backend, entry.signature.operation) == (backend, "all_reduce")


def test_folders_in_folders_are_followed_a_hundred_deep(tmp_path: Path) -> None:
    """os.walk fails in the 1,000th, and so did the analysis of all other files."""
    deep = tmp_path.joinpath(*(MAX_DEPTH + 1) * "d")
    deep.mkdir(parents=True)
    for rank, folder in enumerate((deep.parent, deep)):
        shutil.copy(HANG / "trace_0", folder / f"trace_{rank}")
    (dump,), (problem,) = load_folder(tmp_path)
    assert dump.rank == 0
    assert problem == Problem(str(deep.parent), "its folders are more than 100 deep and were not read", is_unread=True)
