"""A real monitor of a played rank on NCCL. A fake server on a Unix socket plays PyTorch's recorder."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_fr.control.v1.control_pb2 import Command, PeerFailed
from otel_fr.dumps.read import load
from otel_fr.match import CallState
from otel_fr.monitor.nccl.recorder_client import MAX_FAILURES
from otel_fr.timed_http import ask_unix
from tests.support import nccl_inspector
from tests.support.collector_process import running
from tests.support.monitored_rank import Played, play
from tests.support.otlp_messages import attributes
from tests.support.otlp_sink import Sink, grpc_sink
from tests.support.waiting import wait_for
from tests.support.worker_server import FakeWorkerServer, answer, begun, ended, entry, worker_server


@pytest.fixture
def sink() -> Iterator[Sink]:
    with grpc_sink() as found:
        yield found


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[FakeWorkerServer]:
    with worker_server(tmp_path / "recorder") as found:
        yield found


@pytest.fixture
def rank(sink: Sink, recorder: FakeWorkerServer, tmp_path: Path) -> Iterator[Played]:
    env = {"BACKEND": "nccl", "RECORDER": str(tmp_path / "recorder"), "OTEL_FR_STALL_SECONDS": "60"}
    with play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "RANK": "2", **env}) as played:
        sink.event("torch.rank.started")
        yield played


def test_calls_that_a_device_is_in_are_ended_for_a_peer_that_hangs_too(
    recorder: FakeWorkerServer, tmp_path: Path
) -> None:
    """A call that the device has not begun may not wait for a peer, so it is not ended."""
    env = {"BACKEND": "nccl", "RECORDER": str(tmp_path / "recorder"), "OTEL_FR_STALL_SECONDS": "1"}
    env["OTEL_FR_ON_PEER_FAILURE"] = "abort"
    with grpc_sink(control=True) as sink, play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, **env}) as rank:
        sink.wait(lambda: sink.watchers, what="a monitor that listens")
        later = {"time_created_ns": time.time_ns() + 60_000_000_000}
        timed = begun(1, process_group=["7", "pipeline"], pg_id=1, record_id=1, **later)
        recorder.show(entry(1, **later), timed)
        enqueue(rank, 1)
        failed = PeerFailed(incident_id="i1", ranks=[1], reason="rank 1 holds the GIL", kind="stuck")
        sink.commands.put(Command(peer_failed=failed))
        sink.event("torch.rank.peer_failed")
        seen = len(sink.named("torch.rank.progress"))
        sink.wait(lambda: len(sink.named("torch.rank.progress")) > seen + 4, what="seconds in which it is queued")
        assert not sink.named("torch.rank.calls_ended")
        recorder.show(begun(1, **later), timed)
        assert sink.event("torch.rank.calls_ended").report["reason"] == "stuck: rank 1 holds the GIL"


@pytest.mark.long
def test_a_recorder_that_answers_slowly_makes_no_healthy_rank_stall(tmp_path: Path) -> None:
    """A call that was in flight in the last answer may have ended long ago."""
    number, later = 0, time.time_ns() + 60_000_000_000

    def answered() -> bytes:
        time.sleep(0.7)  # so the answer is this old when it is sent
        done = [ended(one, time_created_ns=later) for one in range(max(1, number - 20), number)]
        return answer([*done, begun(number, time_created_ns=later)] if number else [])

    env = {"BACKEND": "nccl", "RECORDER": str(tmp_path / "recorder"), "OTEL_FR_STALL_SECONDS": "3"}
    with worker_server(tmp_path / "recorder") as recorder, grpc_sink() as sink:
        recorder.body = answered
        with play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, **env}) as rank:
            while number < 40:
                number += 1
                enqueue(rank, 1)
                time.sleep(0.25)  # the job moves
            assert sink.named("torch.rank.progress")
            assert not sink.named("torch.collective.stalled")
            assert not sink.named("torch.flight_recorder.written")


def enqueue(rank: Played, n: int) -> None:
    rank.do("issue", n=n, complete="unknown", backend="nccl")


def spans(sink: Sink) -> list[dict[str, Any]]:
    found = [attributes(span.attributes) for span in sink.spans]
    return sorted(found, key=lambda one: int(one["torch.collective.record_id"]))


def states(sink: Sink) -> list[str]:
    return [span["torch.collective.state"] for span in spans(sink)]


def test_spans_reports_and_files_tell_what_the_device_does(
    sink: Sink, recorder: FakeWorkerServer, rank: Played
) -> None:
    enqueue(rank, 3)
    recorder.show(ended(1, ms=4.5), begun(2), entry(3))
    sink.wait(lambda: sink.spans)
    (span,) = spans(sink)
    assert span["torch.collective.state"] == "completed"
    assert span["torch.collective.device.duration_ms"] == 4.5
    assert span["torch.collective.device.delay_ms"] >= 0

    def is_true(report: dict[str, Any]) -> bool:
        calls = [(call["seq"], "wait_s" in call, "posted" in call) for call in report["inflight"]]
        return calls == [(2, True, False), (3, False, True)]

    report = sink.event("torch.rank.progress", where=is_true).report
    (group,) = report["groups"]
    assert (group["enq"], group["done"], group["ended"]) == (3, 1, 1)
    rank.do("say", message={"cmd": "dump", "reason": "test"})
    path = Path(sink.event("torch.flight_recorder.written").attributes["file.path"])
    assert [entry.state for entry in load(path).entries] == [
        CallState.COMPLETED,
        CallState.IN_FLIGHT,
        CallState.IN_FLIGHT,
    ]
    assert rank.end("leave", clean=True) == 0
    sink.wait(lambda: len(sink.spans) == 3)
    assert states(sink) == ["completed", "scheduled", "scheduled"]


def test_a_collectors_metrics_tell_queue_and_device_apart(recorder: FakeWorkerServer, tmp_path: Path) -> None:
    env = {"BACKEND": "nccl", "RECORDER": str(tmp_path / "recorder"), "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    with running(tmp_path / "collector") as collector:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}", "OTEL_FR_STALL_SECONDS": "60"}
        with play(tmp_path, {**endpoint, **env}) as played:
            assert wait_for(lambda: json.loads(collector.get("/api/v1/jobs"))["jobs"])
            recorder.body = lambda: answer([ended(1, ms=40.0), ended(2, ms=10.0)])
            enqueue(played, 2)
            name = "otel_fr_collective_device_duration_seconds"
            assert wait_for(lambda: collector.metric(f"{name}_count") == 2)
            assert collector.metric(f"{name}_sum", backend="nccl") == pytest.approx(0.05)
            assert collector.metric("otel_fr_collective_device_delay_seconds_count") == 2
            assert collector.metric("otel_fr_collective_duration_seconds_count") == 2
            assert played.end("leave", clean=True) == 0


def test_a_rank_that_ends_has_its_last_calls_completed(sink: Sink, recorder: FakeWorkerServer, rank: Played) -> None:
    enqueue(rank, 1)
    recorder.show(ended(1))
    sink.wait(lambda: sink.spans)
    enqueue(rank, 20)
    recorder.show(*[ended(number) for number in range(1, 22)])
    rank.do("mark_clean")
    rank.do("say_bye")
    assert rank.end("leave") == 0
    sink.wait(lambda: len(sink.spans) == 21)
    assert states(sink) == ["completed"] * 21


def test_a_recorder_that_stands_still_delays_neither_the_loop_nor_the_end_of_the_rank(
    sink: Sink, recorder: FakeWorkerServer, rank: Played
) -> None:
    stuck = threading.Event()

    def never() -> bytes:
        stuck.wait()
        return answer([])

    recorder.body = never
    try:
        enqueue(rank, 2)
        sink.wait(lambda: recorder.asked)
        count = len(sink.named("torch.rank.progress"))
        sink.events_named("torch.rank.progress", count + 2)
        rank.do("mark_clean")
        rank.do("say_bye")
        assert rank.end("leave") == 0
        sink.wait(lambda: len(sink.spans) == 2)
        assert states(sink) == ["unknown"] * 2
    finally:
        stuck.set()


def test_a_recorder_that_cannot_be_read_leaves_calls_unknown(
    sink: Sink, recorder: FakeWorkerServer, rank: Played
) -> None:
    recorder.body = lambda: b"no JSON"
    enqueue(rank, 2)
    sink.wait(lambda: len(sink.spans) == 2)
    assert states(sink) == ["unknown"] * 2
    assert len(recorder.asked) == MAX_FAILURES
    enqueue(rank, 1)  # from now on, spans are sent at once
    sink.wait(lambda: len(sink.spans) == 3)
    assert len(recorder.asked) == MAX_FAILURES
    assert rank.end("leave", clean=True) == 0


def test_an_answer_is_bounded_in_size_and_time(recorder: FakeWorkerServer, tmp_path: Path) -> None:
    path, target = str(tmp_path / "recorder"), "/handler/dump_nccl_trace_json?onlyactive=false"
    recorder.body = lambda: b"x" * 1000
    assert len(ask_unix(path, "POST", target, seconds=10, most=1000)) == 1000
    with pytest.raises(OSError, match="more than 999 bytes"):
        ask_unix(path, "POST", target, seconds=10, most=999)
    stuck = threading.Event()
    recorder.body = lambda: b"x" if stuck.wait() else b""
    try:
        with pytest.raises(OSError, match="timed out"):
            ask_unix(path, "POST", target, seconds=0.1, most=999)
    finally:
        stuck.set()
    with pytest.raises(OSError, match=r"No such file"):
        ask_unix(path + "-", "POST", target, seconds=10, most=999)


def test_without_a_recorder_nccl_inspectors_file_tells_how_long_the_device_took(tmp_path: Path) -> None:
    """The test writes the file in the documented format, because there is no NCCL here."""
    folder = tmp_path / "inspector"
    env = {"BACKEND": "nccl", "OTEL_METRIC_EXPORT_INTERVAL": "500", "RANK": "2", "OTEL_FR_STALL_SECONDS": "60"}
    asked = {"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": str(folder)}
    with (
        running(tmp_path / "collector") as collector,
        play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}", **env, **asked}) as played,
    ):
        host, pid = socket.gethostname(), played.process.pid
        calls = [nccl_inspector.call("AllReduce", number, 48, 20_000) for number in range(3)]
        lines = [nccl_inspector.marker(2, 4, host, pid), *calls]
        path = nccl_inspector.write(folder, host, pid, lines[:-1])
        enqueue(played, 3)
        name = "otel_fr_collective_device_duration_seconds"
        assert wait_for(lambda: collector.metric(f"{name}_count") == 2)
        path.write_text(nccl_inspector.text(lines))
        assert played.end("leave", clean=True) == 0
        played.monitor_end()
        assert collector.metric(f"{name}_count") == 3  # the last lines are read at the end
        assert collector.metric(f"{name}_sum", backend="nccl") == pytest.approx(0.06)
