"""Durations on the devices, from files of NCCL Inspector beside flight-recorder files.

There is no NCCL here: the files are made by the format that NCCL documents (`tests.support.nccl_inspector`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.analyze import HEALTHY, UNUSABLE, load
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.dumps.nccl_inspector import LineReader, read_file
from tests.support import nccl_inspector
from tests.support.nccl_inspector import call, marker
from tests.support.rings import RankRing, signature

BIG = signature("all_reduce", [(1024, 256)])
HALF = signature("all_gather_into_tensor", [(1024,)], output_sizes=((2048,),))
MIB = 1 << 20


def job(folder: Path, calls: int = 3, capacity: int = 1000) -> Path:
    """Two ranks with so many all_reduces of 1 MiB, an all_gather after each."""
    for rank in (0, 1):
        ring = RankRing(folder / "rings", rank, 2, capacity)
        for _ in range(calls):
            ring.call(BIG)
            ring.call(HALF)
        ring.write(folder / "files", pid=100 + rank)
    return folder / "files"


def inspected(folder: Path, *, repeats_header: bool = False) -> None:
    for rank, microseconds in ((0, 9_000.0), (1, 500.0)):
        lines = [marker(rank, 2, "node-1", 100 + rank)]
        for number in range(3):
            lines += [call("AllReduce", number, MIB, microseconds), call("AllGather", number, 4096, 20)]
        nccl_inspector.write(folder, "node-1", 100 + rank, lines, repeats_header=repeats_header)


@pytest.mark.parametrize("repeats_header", [False, True], ids=["since 4.3", "4.0"])
def test_calls_on_the_devices_are_joined_to_ranks_groups_and_sequence_numbers(
    tmp_path: Path, repeats_header: bool
) -> None:
    folder = job(tmp_path)
    inspected(folder, repeats_header=repeats_header)
    report = load(folder)
    assert report.status == HEALTHY
    assert not [problem.text for problem in report.problems]
    joined: dict[tuple[str, int | None], list[int | None]] = defaultdict(list)
    for one in report.device_durations.calls:
        assert one.group is not None
        assert one.group.description == "default_pg"
        joined[one.call.operation, one.rank].append(one.sequence_id)
    assert joined == {
        **{("all_reduce", rank): [1, 3, 5] for rank in (0, 1)},
        **{("all_gather", rank): [2, 4, 6] for rank in (0, 1)},
    }
    line = (
        "all_reduce of 1.0 MiB in group default_pg (0): 6 calls, 500 µs each on rank 1, 9.0 ms on rank 0;"
        " bus bandwidth 3.1 GB/s"
    )
    assert line in to_text(report)
    first = json.loads(to_json(report))["device_durations"]["calls"][0]
    assert (first["operation"], first["size_bytes"], first["calls"]) == ("all_reduce", MIB, 6)
    assert first["mean_s"] == {"0": pytest.approx(0.009), "1": pytest.approx(0.0005)}
    pytest.importorskip("pandas", reason="needs pandas")
    frame = report.to_pandas()["device_calls"]
    assert list(frame.groupby("rank")["duration_s"].max().round(4)) == [0.009, 0.0005]
    assert frame["sequence_id"].notna().all()


def test_a_folder_elsewhere_can_be_named(tmp_path: Path) -> None:
    folder = job(tmp_path)
    inspected(tmp_path / "inspector")
    assert not load(folder).device_durations.calls
    assert len(load(folder, nccl_inspector=tmp_path / "inspector").device_durations.calls) == 12
    with pytest.raises(FileNotFoundError, match="nothing: no such file or folder"):
        load(folder, nccl_inspector=tmp_path / "nothing")


def test_counts_that_do_not_fit_the_calls_give_no_sequence_number(tmp_path: Path) -> None:
    """As where a CUDA graph is replayed: NCCL counts its replays, and PyTorch does not."""
    folder = job(tmp_path)
    lines = [marker(0, 2, "node-1", 100), *(call("AllReduce", number, MIB * (1 + number), 500) for number in range(3))]
    nccl_inspector.write(folder, "node-1", 100, lines)
    calls = load(folder).device_durations.calls
    assert [(one.rank, one.sequence_id) for one in calls] == [(0, None)] * 3


def test_a_ring_that_wrapped_gives_no_sequence_number(tmp_path: Path) -> None:
    folder = job(tmp_path, calls=40, capacity=16)
    inspected(folder)
    calls = load(folder).device_durations.calls
    assert {(one.group is not None, one.sequence_id) for one in calls} == {(True, None)}


def two_groups(folder: Path) -> Path:
    for rank in (0, 1):
        ring = RankRing(folder / "rings", rank, 2)
        ring.group("1", (0, 1), "tensor_parallel")
        ring.call(BIG)
        ring.call(BIG, group="1")
        ring.write(folder / "files", pid=100 + rank)
    return folder / "files"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("unknown", "communicator 0x7f8c496ae9f661 of 2 ranks"), ("tensor_parallel", "group tensor_parallel (1)")],
)
def test_of_two_groups_with_the_same_ranks_only_the_name_tells(tmp_path: Path, name: str, expected: str) -> None:
    folder = two_groups(tmp_path)
    for rank in (0, 1):
        lines = [marker(rank, 2, "node-1", 100 + rank, name=name), call("AllReduce", 0, MIB, 500)]
        nccl_inspector.write(folder, "node-1", 100 + rank, lines)
    assert f"all_reduce of 1.0 MiB in {expected}: 2 calls" in to_text(load(folder))


def test_processes_of_another_run_are_left_out(tmp_path: Path) -> None:
    folder = job(tmp_path)
    inspected(folder)
    nccl_inspector.write(folder, "node-1", 999, [marker(0, 2, "node-1", 999), call("AllReduce", 0, MIB, 500)])
    found = load(folder).device_durations
    assert len(found.calls) == 12
    assert found.notes == ["1 call in files of NCCL Inspector are of processes that are not of this run"]


def test_without_flight_recorder_files_durations_are_shown_by_communicator(tmp_path: Path) -> None:
    inspected(tmp_path)
    report = load(tmp_path)
    assert report.status == UNUSABLE
    assert "all_reduce of 1.0 MiB in communicator 0x7f8c496ae9f661 of 2 ranks: 6 calls" in to_text(report)


def test_what_inspector_lost_and_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    folder = job(tmp_path)
    lines = [marker(0, 2, "node-1", 100, coll_dropped_total=512), call("AllReduce", 0, MIB, 500)]
    path = nccl_inspector.write(folder, "node-1", 100, lines)
    with path.open("a") as file:
        file.write('not JSON\n{"coll_perf": {"coll": "AllRed')  # the last line is being written
    found = load(folder).device_durations
    assert len(found.calls) == 1
    assert found.notes == [
        "1 line in files of NCCL Inspector could not be read",
        "NCCL Inspector has lost 512 calls, which it did not write in time",
    ]


def test_only_the_newest_part_of_a_large_file_is_read(tmp_path: Path) -> None:
    lines = []
    for number in range(200):
        lines += [marker(0, 2, "node-1", 100), call("AllReduce", number, MIB, 500)]
    path = nccl_inspector.write(tmp_path, "node-1", 100, lines)
    read = read_file(path, 8_192)
    assert (read.skipped, read.unusable) == (path.stat().st_size - 8_192, 0)
    assert [one.number for one in read.calls] == list(range(200 - len(read.calls), 200))
    assert 5 < len(read.calls) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["header", "metadata", "coll_perf", "p2p_perf", "dump_stats"]), JSON)))
def test_any_lines_are_read_without_an_error(lines: list[dict[str, object]]) -> None:
    reader = LineReader()
    for line in lines:
        reader.read(json.dumps(line).encode())
    assert reader.read(b"[" * 100_000) is None
    assert reader.read(json.dumps(marker(0, 2, "h", 1)).encode()) is None
    assert reader.read(json.dumps(call("AllReduce", 3, MIB, 500)).encode()) is not None
