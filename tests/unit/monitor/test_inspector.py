"""NCCL Inspector's file of a rank, followed while it grows, and its durations in the rank's metrics.

There is no NCCL here: the files are made by the format that NCCL documents (`tests.support.nccl_inspector`).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import semconv as names
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.dumps.nccl_inspector import DeviceCall, LineReader
from otel_fr.monitor.nccl import inspector_watch as module
from otel_fr.monitor.nccl.inspector_watch import InspectorWatch, inspector_file
from otel_fr.monitor.telemetry.metrics import RankMetrics
from otel_fr.ring import GroupDef, Record, RecordState
from tests.support.nccl_inspector import call, marker, text
from tests.support.rank_metrics import SIZE, group, record

ON = {"NCCL_INSPECTOR_ENABLE": "1"}
HEAD = marker(0, 2, "h", 1)


class Follower:
    """A watch with a clock, and what it has taken."""

    def __init__(self, path: Path) -> None:
        self.taken: list[DeviceCall] = []
        self.watch = InspectorWatch(path, self.taken.append)
        self.now = count(step=module.SECONDS)

    def look(self) -> list[int]:
        """The numbers of the calls that are new."""
        self.taken.clear()
        self.watch.step(next(self.now))
        return [one.number for one in self.taken]


def test_lines_are_taken_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "h-pid1.log"
    follower = Follower(path)
    assert follower.look() == []
    whole = text([HEAD, *(call("AllReduce", number, SIZE, 500) for number in range(3))])
    path.write_text(whole[:-20])
    assert follower.look() == [0, 1]
    path.write_text(whole)  # the same file, longer
    assert follower.look() == [2]
    assert follower.look() == []


def test_a_file_that_is_replaced_or_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "h-pid1.log"
    follower = Follower(path)
    path.write_text(text([HEAD, call("AllReduce", 0, SIZE, 500), call("AllReduce", 1, SIZE, 500)]))
    assert follower.look() == [0, 1]
    path.rename(tmp_path / "h-pid1.log.1")
    assert follower.look() == []
    path.write_text(text([HEAD, call("AllReduce", 2, SIZE, 500)]))
    assert follower.look() == [2]
    os.truncate(path, 0)
    assert follower.look() == []
    path.write_text(text([HEAD, call("AllReduce", 3, SIZE, 500)]))
    assert follower.look() == [3]


def test_a_reader_that_is_far_behind_goes_on_near_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_BYTES", 2_000)
    monkeypatch.setattr(module, "MAX_BEHIND", 20_000)
    path = tmp_path / "h-pid1.log"
    lines = [item for number in range(300) for item in (HEAD, call("AllReduce", number, SIZE, 500))]
    path.write_text(text(lines))
    follower = Follower(path)
    found = follower.look()
    assert found
    assert found == list(range(found[0], found[-1] + 1))
    assert found[0] > 290
    assert (*found, *follower.look())[-1] == 299


def test_a_file_that_cannot_be_read_ends_the_watch_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "h-pid1.log").mkdir()
    follower = Follower(tmp_path / "h-pid1.log")
    assert follower.look() == follower.look() == []


def test_storage_that_does_not_answer_does_not_stop_the_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "h-pid1.log"
    path.write_text(text([HEAD, call("AllReduce", 0, SIZE, 500)]))
    follower, answers, read = Follower(path), threading.Event(), module._open
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(module, "_open", lambda found: answers.wait() and read(found))
    for _ in range(3):
        stepping = threading.Thread(target=follower.look, daemon=True)
        stepping.start()
        stepping.join(60.0)
        assert not stepping.is_alive()
    answers.set()
    assert follower.watch._thread is not None
    follower.watch._thread.join()
    monkeypatch.setattr(module, "LOOK_SECONDS", 60.0)
    assert follower.look() == [0]


@pytest.mark.parametrize("kind", ["pipe", "endless device", "file of another user"])
def test_what_others_put_in_its_place_is_not_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h-pid1.log"
    if kind == "pipe":
        os.mkfifo(path)  # to open it would wait for a writer
    elif kind == "endless device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text(text([HEAD, call("AllReduce", 0, SIZE, 500)]))
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    follower = Follower(path)
    with caplog.at_level(logging.INFO, "otel_fr.monitor"):
        assert follower.look() == follower.look() == []
    assert ("belongs to user" if kind == "file of another user" else "not a regular file") in caplog.text
    assert len(caplog.records) == 1


def test_which_file_it_is_follows_from_the_ranks_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, name = os.getpid(), f"{socket.gethostname()}-pid{os.getpid()}.log"
    assert inspector_file({}, pid) is None
    for text_ in ("0", "", "yes", "\u00b2"):
        assert inspector_file({"NCCL_INSPECTOR_ENABLE": text_}, pid) is None
    assert inspector_file(ON | {"NCCL_INSPECTOR_PROM_DUMP": "1"}, pid) is None
    assert inspector_file(ON | {"NCCL_INSPECTOR_OTEL_EXPORT": "1"}, pid) is None
    assert inspector_file(ON | {"NCCL_INSPECTOR_DUMP_DIR": "/var/inspector"}, pid) == Path("/var/inspector", name)
    monkeypatch.chdir(tmp_path)
    for more, folder in (({}, "unknown-jobid"), ({"SLURM_JOBID": "7"}, "7"), ({"NCCL_INSPECTOR_DUMP_DIR": "out"}, "")):
        found = inspector_file(ON | more, pid)
        assert found is not None
        (tmp_path / (f"nccl-inspector-{folder}" if folder else "out")).mkdir()
        found.write_text("x")  # a relative folder is the rank's
        assert (tmp_path / (f"nccl-inspector-{folder}" if folder else "out") / name).read_text() == "x"


# In the metrics.


def nccl(number: int, of: GroupDef, size: int = SIZE, backend: str = "nccl") -> Record:
    made = record(number, 0.01, of, size=size)
    return made._replace(signature=replace(made.signature, backend=backend), state=RecordState.UNKNOWN, ended_ns=None)


def measured(number: int, size: int = SIZE, seconds: float = 0.004, name: str = "unknown", **more: str) -> DeviceCall:
    reader = LineReader()
    reader.read(text([marker(1, 2, "h", 1, name=name)]).encode())
    found = reader.read(text([call("AllReduce", number, size, seconds * 1e6, **more)]).encode())
    assert found is not None
    return found


def on_device(metrics: RankMetrics) -> list[HistogramDataPoint]:
    request = metrics.request(Resource(), ())
    assert request is not None
    found = {one.name: one for one in request.resource_metrics[0].scope_metrics[0].metrics}
    metric = found.get(names.METRIC_DEVICE_DURATION)
    return [] if metric is None else list(metric.histogram.data_points)


def source(point: HistogramDataPoint) -> str:
    return {one.key: one.value.string_value for one in point.attributes}.get(names.DEVICE_SOURCE, "")


def test_durations_are_in_the_series_of_the_calls_and_say_who_measured_them() -> None:
    metrics, of = RankMetrics("r", 1, 0), group()
    metrics.add_inspected(measured(0))
    for number in (1, 2):
        metrics.add(nccl(number, of))
    metrics.add_inspected(measured(1, seconds=0.006))
    (point,) = on_device(metrics)
    assert point.count == 2
    assert point.sum == pytest.approx(0.01)
    values = {one.key: one.value.string_value for one in point.attributes}
    assert (values[names.OPERATION], values[names.SIZE_CLASS]) == ("all_reduce", "1MiB")
    assert source(point) == "nccl_inspector"
    metrics.add_inspected(measured(2))
    assert on_device(metrics)[0].count == 3


@pytest.mark.parametrize(("backend", "points"), [("nccl2", 1), ("gloo", 0)])
def test_only_calls_of_backends_that_call_nccl_have_them(backend: str, points: int) -> None:
    metrics, of = RankMetrics("r", 1, 0), group()
    metrics.add(nccl(1, of, backend=backend))
    metrics.add_inspected(measured(0))
    assert len(on_device(metrics)) == points


def test_a_duration_comes_before_its_call_and_waits_for_it() -> None:
    metrics, of = RankMetrics("r", 1, 0), group()
    metrics.add(nccl(1, of))
    metrics.add_inspected(measured(0, size=2 * SIZE))
    assert on_device(metrics) == []
    metrics.add(nccl(2, of, size=2 * SIZE))
    assert on_device(metrics)[0].count == 1


def test_times_by_the_hosts_clock_are_not_times_of_the_device() -> None:
    metrics, of = RankMetrics("r", 1, 0), group()
    metrics.add(nccl(1, of))
    metrics.add_inspected(measured(0, coll_timing_source="collective_cpu"))
    assert on_device(metrics) == []


def test_of_two_groups_with_the_same_ranks_only_the_communicators_name_tells() -> None:
    metrics, of = RankMetrics("r", 1, 0), group()
    other = replace(of, id="b2", name="5", description="data_parallel")
    for number, one in enumerate((of, other), 1):
        metrics.add(nccl(number, one))
    metrics.add_inspected(measured(0))
    assert on_device(metrics) == []
    metrics.add_inspected(measured(1, name="data_parallel"))
    (point,) = on_device(metrics)
    assert "data_parallel" in {one.value.string_value for one in point.attributes}


@pytest.mark.parametrize("first", ["recorder", "inspector"])
def test_a_call_that_both_have_measured_counts_once(first: str) -> None:
    metrics, of = RankMetrics("r", 1, 0), group()
    metrics.add(nccl(1, of))

    def recorded(number: int) -> None:
        one = nccl(number, of)
        metrics.add(one, DeviceTimes(RecordState.COMPLETED, one.issued_ns, one.issued_ns + 1, 0.004))

    if first == "recorder":
        recorded(2)
    metrics.add_inspected(measured(0))
    on_device(metrics)
    recorded(3)
    (point,) = on_device(metrics)
    assert source(point) == ("" if first == "recorder" else "nccl_inspector")
    assert point.count == (2 if first == "recorder" else 1)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_fr.monitor.nccl.inspector_durations.MAX_WAITING", 10)
    metrics, of = RankMetrics("r", 1, 0), group()
    metrics.add(nccl(1, of))
    for number in range(50):
        metrics.add_inspected(measured(number, size=3 * SIZE))
    assert on_device(metrics) == []
    metrics.add_inspected(measured(50))
    assert on_device(metrics)[0].count == 1
