"""What the communication of a healthy run costs, and the rank that makes it slow."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_fr.analyze import HEALTHY, UNUSABLE, Analysis, analysis, load, performance
from otel_fr.analyze.call_times import CallTimes, KindKey
from otel_fr.analyze.output.text import to_json, to_text
from otel_fr.analyze.performance import Kind
from otel_fr.cli import main
from tests.support.rings import RankRing, signature
from tests.support.torch_files import BEGIN, SECOND, entry, group, write

REDUCE = signature("all_reduce", reduce_op="sum")
GATHER = signature("all_gather_into_tensor", output_sizes=((6, 4),))
BROADCAST = signature("broadcast", root=0)
STEP, COMPUTE, TRANSFER = 0.1, 0.02, 0.004
SITES = ((("/job/train.py", 40, "step"),), (("/job/train.py", 44, "step"),))


def job(folder: Path, *, late: float = 0.0, world: int = 4, steps: int = 150, step: float = STEP) -> Analysis:
    """In each step, ranks 0 and 1, and 2 and 3 exchange something, compute, and all meet; rank 3 computes longer."""
    now = time.monotonic_ns()
    for rank in range(world):
        ring = RankRing(folder / "rings", rank, world, now=now)
        ring.group("1", (rank // 2 * 2, rank // 2 * 2 + 1), "pair")
        for number in range(steps):
            begin = (steps - number) * step + 1
            ring.call(GATHER, group="1", age_s=begin, took_s=TRANSFER, site=SITES[0])
            own = COMPUTE + (late if rank == 3 else 0.0)
            end = TRANSFER + COMPUTE + late + TRANSFER
            ring.call(REDUCE, age_s=begin - TRANSFER - own, took_s=end - TRANSFER - own, site=SITES[1])
        ring.write(folder / "files", reason="command")
    return load(folder / "files")


def by_operation(report: Analysis) -> dict[str, Kind]:
    return {kind.key.operation: kind for kind in report.performance.kinds}


def test_the_rank_that_others_wait_for_is_named_with_its_lines(tmp_path: Path) -> None:
    report = job(tmp_path, late=0.05)
    assert report.status == HEALTHY
    slowest = report.performance.slowest
    assert slowest is not None
    assert (slowest.late.rank, slowest.group.description) == (3, "default_pg")
    assert slowest.late.waited == pytest.approx(0.5, abs=0.03)
    assert (slowest.after, slowest.before) == ("/job/train.py:40 step", "/job/train.py:44 step")
    first = to_text(report).splitlines()[0]
    assert first.startswith("No fault found")
    for part in ("50 %", "rank 3", slowest.after, slowest.before):
        assert part in first
    assert report.performance.waited_for.keys() == {3}
    shown = json.loads(to_json(report))["performance"]
    assert shown["slowest"]["waited_share"] == pytest.approx(shown["waited_for_s"]["3"] / shown["seconds"], rel=1e-9)


def test_time_in_calls_is_divided_into_wait_and_transfer(tmp_path: Path) -> None:
    report = job(tmp_path, late=0.05)
    found, kinds = report.performance, by_operation(report)
    assert found.seconds == pytest.approx(150 * STEP, rel=0.02)
    reduce, gather = kinds["all_reduce"], kinds["all_gather_into_tensor"]
    assert (reduce.calls, reduce.each, gather.key.group) == (600, 150, "pair")
    assert reduce.parts == pytest.approx((0.0375, TRANSFER), abs=1e-3)  # of three ranks of four
    assert gather.parts == pytest.approx((0.0, TRANSFER), abs=1e-3)
    assert found.share(reduce) == pytest.approx(0.0415 / STEP, rel=0.05)
    assert found.in_flight == pytest.approx((0.0415 + TRANSFER) / STEP, rel=0.05)
    total = re.search(r"all calls: (\d+) % \((\d+) % wait, (\d+) % transfer\)", to_text(report))
    assert total is not None
    assert [int(number) for number in total.groups()] == pytest.approx([45.5, 37.5, 8.0], abs=1.1)


def test_any_number_of_messages_is_compared(tmp_path: Path) -> None:
    """The sum that tells equal messages from others has any size, and any sign."""
    for rank in range(2):
        ring = RankRing(tmp_path / "rings", rank, 2)
        for number in range(60):
            begin = 20.0 - number * STEP
            what = signature(("send", "recv")[rank], ((number + 1, 4),), peer=1 - rank, tag=number)
            for message in range(9):
                ring.call(what, age_s=begin - message * 0.005, took_s=TRANSFER)
            ring.call(REDUCE, age_s=begin - 0.06, took_s=TRANSFER)
        ring.write(tmp_path / "files", reason="command")
    found = load(tmp_path / "files").performance
    assert {kind.key.operation: kind.calls for kind in found.kinds}["all_reduce"] == 120


def test_a_run_that_cannot_be_compared_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path)
    whole, part, empty = (tmp_path / name for name in ("files", "part", "empty"))
    part.mkdir()
    empty.mkdir()
    (part / "trace_3").write_bytes((whole / "trace_3").read_bytes())
    assert main(["analyze", str(whole), "--against", str(empty)]) == UNUSABLE
    assert "no readable flight-recorder file" in capsys.readouterr().err
    assert main(["analyze", str(whole), "--against", str(part)]) == HEALTHY
    assert "the other run has no file of ranks 0-2" in capsys.readouterr().out


def test_files_that_cannot_be_measured_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: object) -> None:
        raise OverflowError

    monkeypatch.setattr(analysis, "performance_of", fail)
    report = job(tmp_path)
    assert report.status == HEALTHY
    assert not report.performance.kinds


def test_calls_of_which_each_has_another_size_take_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a mixture of experts: each all_to_all has different sizes."""
    count = 100_000
    run = job(tmp_path, steps=2).run
    assert run is not None
    number, none, took = np.arange(count), np.zeros(count, np.int64), np.full(count, 0.5)
    calls = CallTimes(number % 4, number, none, number, number, number, took, took, none)
    keys = [KindKey("all_to_all_single", "default_pg", size, is_on_device=False) for size in range(count)]
    monkeypatch.setattr(performance, "call_times", lambda _: (calls, keys))
    begun = time.process_time()
    kinds = performance.performance_of(run).kinds
    assert time.process_time() - begun < 4
    assert (len(kinds), {(kind.ranks, kind.calls, kind.seconds) for kind in kinds}) == (count, {(1, 1, 0.5)})


def test_nobody_is_named_where_all_take_as_long(tmp_path: Path) -> None:
    report = job(tmp_path)
    assert report.performance.slowest is None
    assert "waited" not in to_text(report).splitlines()[0]
    assert json.loads(to_json(report))["performance"]["slowest"] is None


def test_an_operation_that_need_not_end_together_has_no_parts(tmp_path: Path) -> None:
    for rank in range(2):
        ring = RankRing(tmp_path / "rings", rank, 2)
        for number in range(20):
            ring.call(BROADCAST, age_s=30 - number, took_s=0.1 + 0.4 * rank)
        ring.write(tmp_path / "files", reason="command")
    kind = by_operation(load(tmp_path / "files"))["broadcast"]
    assert kind.parts is None
    assert kind.mean == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize("timing", [True, False])
def test_calls_on_devices_count_by_their_times_there(tmp_path: Path, timing: bool) -> None:
    """Rank 1 takes 50 ms longer for itself in each of 150 steps: its device is in the call for less."""
    files: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(3)}
    for rank, calls in files.items():
        took = {"duration_ms": 1.0 if rank == 1 else 51.0} if timing else {}
        for number in range(150):
            created = BEGIN + number * SECOND // 10
            times = {"time_created_ns": created, "time_discovered_completed_ns": created + 99_000_000}
            calls.append(entry(number, "all_reduce", number + 1, **times, **took))
    write(tmp_path, files)
    found = load(tmp_path).performance
    assert found.in_flight is None
    if not timing:  # when their ends were seen shows nothing
        assert (found.kinds, found.slowest) == ([], None)
        return
    assert found.slowest is not None
    assert found.slowest.late.rank == 1
    (kind,) = found.kinds
    assert kind.key.is_on_device
    assert kind.parts == pytest.approx((0.1 / 3, 0.001))


def test_a_rank_without_calls_leaves_the_others_their_own_times(tmp_path: Path) -> None:
    """Rank 1 is late for ranks 2 and 3 because it waits for rank 4 in another group. Rank 0 has made no call yet."""
    files: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(5)}
    took = {("1", 1): 51.0, ("1", 4): 1.0, ("2", 1): 1.0, ("2", 2): 51.0, ("2", 3): 51.0}
    for number in range(150):
        for (name, rank), milliseconds in took.items():
            created = BEGIN + number * SECOND // 10 + int(name)
            calls = files[rank]
            times = {"time_created_ns": created, "time_discovered_completed_ns": created + 99_000_000}
            own = {"process_group": (name, ""), "pg_id": int(name), "duration_ms": milliseconds}
            calls.append(entry(len(calls), "all_reduce", number + 1, **times, **own))
    members = {"0": range(5), "1": (1, 4), "2": (1, 2, 3)}
    write(tmp_path, files, **{name: group(name, "", ranks) for name, ranks in members.items()})
    waited = load(tmp_path).performance.waited_for
    assert waited[4] > 100 * waited[1]  # what rank 1 did before its first call is not known


def test_a_batch_of_as_many_calls_as_ranks_is_no_collective_of_all(tmp_path: Path) -> None:
    """The older batches of two calls are in rank 1's file only."""
    calls: list[dict[str, Any]] = []
    for number in range(20):
        begin = BEGIN + number * SECOND
        times = {"time_created_ns": begin, "time_discovered_completed_ns": begin + SECOND // 2, "duration_ms": 400.0}
        for operation, state in (("all_reduce", "scheduled"), ("all_reduce", "scheduled"), ("coalesced", "completed")):
            calls.append(entry(len(calls), operation, number + 1, state=state, **times))
    (kind,) = load(write(tmp_path, {0: calls[30:], 1: calls})).performance.kinds
    assert (kind.calls, kind.measured) == (60, 0)


def test_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path / "slow", late=0.05)
    job(tmp_path / "fast", step=0.04)
    folders = [str(tmp_path / name / "files") for name in ("slow", "fast")]
    assert main(["analyze", folders[0], "--against", folders[1], "--format", "json"]) == HEALTHY
    against = json.loads(capsys.readouterr().out)["against"]
    assert against["path"] == folders[1]
    assert against["pace"] == pytest.approx(0.4, rel=0.05)
    first = against["operations"][0]
    assert (first["operation"], first["size_bytes"]) == ("all_reduce", 48)
    assert first["wait_s"] == pytest.approx([0.0375, 0.0], abs=1e-3)
    assert first["transfer_s"] == pytest.approx([TRANSFER, TRANSFER], abs=1e-3)
    assert main(["analyze", folders[0], "--against", folders[1]]) == HEALTHY
    text = capsys.readouterr().out
    assert f"Against {folders[1]}:" in text
    assert re.search(r"2\.(49|50|51) times as far apart", text)
    assert main(["analyze", folders[1], "--against", folders[0]]) == HEALTHY
    assert re.search(r"2\.(49|50|51) times as frequent", capsys.readouterr().out)


@pytest.mark.parametrize("more", [("--format", "html"), ("-j",)])
def test_a_comparison_has_two_forms(tmp_path: Path, more: tuple[str, ...]) -> None:
    job(tmp_path, steps=2)
    assert main(["analyze", str(tmp_path / "files"), "--against", str(tmp_path / "files"), *more]) == 2
