"""The collector's commands, over a real gRPC stream."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr import identity
from otel_fr.config import Config
from otel_fr.control.v1.control_pb2 import Command, Dump, PeerFailed, WatchRequest
from otel_fr.dumps.read import load
from otel_fr.monitor.control import client as control
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.otlp_sender import GrpcTarget
from tests.support.monitored_rank import play
from tests.support.otlp_sink import Sink, grpc_sink, http_sink
from tests.support.waiting import until, wait_for


def watcher(sink: Sink) -> WatchRequest:
    found = sink.wait(lambda: sink.watchers, what="a monitor that listens")[0]
    assert isinstance(found, WatchRequest)
    return found


def test_the_collector_may_ask_for_the_file_and_report_failed_peers(tmp_path: Path) -> None:
    env = {"OTEL_FR_STALL_SECONDS": "1000"}  # an idle rank would write the file again after the stall time
    with grpc_sink(control=True) as sink, play(tmp_path, {**env, "OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as rank:
        request = watcher(sink)
        assert (request.job_id, request.attempt, request.rank) == ("job-7", 1, 0)
        assert request.run_id == identity.run_id("job-7", 1, "n0")
        assert (request.host_name, request.pid) == ("node-1", rank.process.pid)
        failed = PeerFailed(incident_id="i1", ranks=[1], reason="rank 1 was killed", kind="ended")
        for _ in range(2):
            sink.commands.put(Command(peer_failed=failed))
        sink.commands.put(Command(dump=Dump(incident_id="i1", reason="incident i1")))
        written = sink.event("torch.flight_recorder.written")
        assert written.report["reason"] == "incident i1"
        assert load(tmp_path / "dumps" / "otel_fr_rank_0").facts["reason"] == "incident i1"
        assert rank.stderr.count("says that rank 1 has ended: rank 1 was killed") == 1
        told = sink.named("torch.rank.peer_failed")
        assert [event.report["reason"] for event in told] == ["ended: rank 1 was killed"]
        assert wait_for(lambda: "the collector has opened an incident: incident i1" in rank.stderr)


def test_what_all_monitors_are_told_of_failed_ranks_is_logged_by_the_first_rank_of_a_node_only(tmp_path: Path) -> None:
    with (
        grpc_sink(control=True) as sink,
        play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "RANK": "1"}) as rank,
    ):
        watcher(sink)
        failed = PeerFailed(incident_id="i1", ranks=[2], reason="rank 2 was killed", kind="ended")
        sink.commands.put(Command(peer_failed=failed))
        sink.commands.put(Command(dump=Dump(incident_id="i1", reason="incident i1")))
        sink.event("torch.flight_recorder.written")
        assert sink.named("torch.rank.peer_failed")
        assert "the collector says" not in rank.stderr
        assert wait_for(lambda: "the collector has opened an incident" in rank.stderr)
        assert rank.stderr.count("collector") == 1, "of an incident, the first monitor of the machine that hears of it"


def test_a_file_that_is_requested_after_a_clean_end_contains_that_end(tmp_path: Path) -> None:
    with grpc_sink(control=True) as sink, play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as rank:
        watcher(sink)
        rank.end("leave", code=0, clean=True)
        sink.event("torch.rank.exited")
        sink.commands.put(Command(dump=Dump(incident_id="i1", reason="incident i1")))
        sink.event("torch.flight_recorder.written")
        assert load(tmp_path / "dumps" / "otel_fr_rank_0").facts["exit"]["clean"] is True


def pauses_of(address: str, count: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the client's pauses before its first ``count`` retries."""
    pauses: list[float] = []
    identity = RankIdentity.of({"job_id": "job", "run_id": "run"}, Config(), 1)
    client = control.ControlClient(GrpcTarget(address, True, None, ()), lambda: identity, lambda: None)

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == count:
            client.stop()
        return False

    monkeypatch.setattr(client._stop, "wait", wait)
    client.start()
    until(lambda: len(pauses) >= count)
    return pauses


def test_a_receiver_that_knows_no_control_is_left_in_peace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "NOT_OFFERED_SECONDS", 30.0)
    with grpc_sink() as sink:
        assert pauses_of(sink.address.removeprefix("http://"), 1, monkeypatch)[0] >= 0.8 * 30


def test_a_dead_collector_is_tried_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = pauses_of("127.0.0.1:1", 8, monkeypatch)
    assert pauses[0] <= 1.2
    assert pauses[4] >= 0.8 * control.MAX_WAIT_SECONDS
    assert max(pauses) <= 1.2 * control.MAX_WAIT_SECONDS


@pytest.mark.parametrize(("action", "warnings"), [("abort", 1), ("ignore", 0)])
def test_a_rank_that_is_to_act_on_failed_peers_is_warned_of_a_backend_that_tells_of_none(
    tmp_path: Path, action: str, warnings: int
) -> None:
    env = {"OTEL_FR_ON_PEER_FAILURE": action}
    with grpc_sink() as sink:
        grpc = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}
        target = sink.address.removeprefix("http://")
        expected = f"OTEL_FR_ON_PEER_FAILURE=abort has no effect: {target} is not an otel-fr"
        with play(tmp_path / "grpc", {**env, **grpc}) as rank:
            sink.events_named("torch.rank.progress", 2)
            assert wait_for(lambda: expected in rank.stderr or not warnings)
            rank.end("leave", code=0, clean=True)
            rank.monitor_end()
    assert rank.stderr.count(expected) == warnings, rank.stderr
    with http_sink() as sink:
        http = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with play(tmp_path / "http", {**env, **http}) as rank:
            sink.event("torch.rank.progress")
            rank.end("leave", code=0, clean=True)
            rank.monitor_end()
    assert rank.stderr.count("no effect: its reports do not go to a collector over gRPC") == warnings, rank.stderr
