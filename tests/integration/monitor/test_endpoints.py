"""Endpoints that are down, slow, refuse or come back. The rank never waits long, and every loss is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_fr.config import SpanBatching
from otel_fr.monitor.telemetry.export import FAILED_SECONDS
from tests.support.collector_process import Collector, running
from tests.support.hostile_servers import drips, greets, hostile_server
from tests.support.monitored_rank import PLAYER, environment, play
from tests.support.otlp_sink import grpc_sink
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE, until, wait_for


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_dead_endpoint_does_not_delay_the_rank_s_exit(protocol: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    with play(tmp_path, env) as rank:
        rank.do("issue", n=3000)
        until(lambda: rank.stderr)
        rank.do("say_bye")
        rank.end("leave", clean=True)
        rank.monitor_end()
        assert rank.stderr.count("\n") == 1, "one line a minute about an endpoint"
        said = f"otel-fr[rank 0]: OTEL_EXPORTER_OTLP_ENDPOINT={url} cannot be reached: Connection refused"
        assert rank.stderr.startswith(said)
        assert "otel-fr doctor" in rank.stderr


def test_a_server_that_speaks_another_protocol_is_named(tmp_path: Path) -> None:
    with hostile_server(greets) as url, play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": url}) as rank:
        rank.do("issue", n=10)
        assert wait_for(lambda: "otel-fr[" in rank.stderr)
        assert f"OTEL_EXPORTER_OTLP_ENDPOINT={url} is no OTLP server" in rank.stderr
        assert "SSH-2.0" in rank.stderr
        assert "otel-fr doctor" in rank.stderr


def test_an_endpoint_that_answers_byte_by_byte_is_reported_and_does_not_keep_the_monitor(tmp_path: Path) -> None:
    with hostile_server(drips) as url:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
        with play(tmp_path, env) as rank:
            rank.end("leave", clean=True)
            rank.monitor_end()
            assert rank.stderr.count("otel-fr[rank 0]: ") == 1


def test_of_values_that_cannot_be_used_the_rank_warns_and_its_monitor_does_not_again(tmp_path: Path) -> None:
    with grpc_sink() as sink:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.address,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke",
            "OTEL_FR_ON_HANG": "explode",
            "OTEL_FR_ON_HNAG": "dump",
        }
        with play(tmp_path, env) as rank:
            rank.end("leave", clean=True)
            rank.monitor_end()
            assert "explode" not in rank.stderr
            assert rank.stderr.count("'smoke' is not supported") == 1, "the rank does not read it"
            assert "OTEL_FR_ON_HNAG (did you mean OTEL_FR_ON_HANG?)" in rank.stderr, "nobody else would say it"


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with running(tmp_path_factory.mktemp("collector")) as found:
        yield found


@pytest.mark.parametrize(
    ("address", "protocol", "says"),
    [
        ("{http}", "grpc", "{http} is the collector's page, not its OTLP port: write http://127.0.0.1:4317"),
        ("{http}", "http/protobuf", "{http} is the collector's page, not its OTLP port: write http://127.0.0.1:4318"),
        ("http://{grpc}", "http/protobuf", "http://{grpc} speaks gRPC, not HTTP: write http://127.0.0.1:4318, or set"),
        ("{otlp_http}", "grpc", "{otlp_http} speaks HTTP, not gRPC: write http://127.0.0.1:4317, or set"),
    ],
)
def test_a_wrong_endpoint_is_named_once_with_what_to_write_instead(
    address: str, protocol: str, says: str, tmp_path: Path, collector: Collector
) -> None:
    names = {"http": collector.http, "grpc": collector.grpc, "otlp_http": collector.otlp_http}
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": address.format(**names), "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    with play(tmp_path, env) as rank:
        rank.do("issue", n=10)
        assert wait_for(lambda: "otel-fr[" in rank.stderr)
        rank.do("issue", n=10)
        rank.end("leave", clean=True)
        rank.monitor_end()
        lines = [line for line in rank.stderr.splitlines() if "otel-fr[" in line]  # not the lines of gRPC's core
        assert len(lines) == 1
        assert lines[0].startswith(f"otel-fr[rank 0]: OTEL_EXPORTER_OTLP_ENDPOINT={says.format(**names)}")


def test_a_missing_token_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("hR6uCw2JgE8oVz4M write team-a/\n")
    with (
        running(tmp_path / "collector", "--tokens", str(tmp_path / "tokens")) as collector,
        play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}"}) as rank,
    ):
        rank.do("issue", n=10)
        assert wait_for(lambda: "telemetry is refused: a bearer token is required" in rank.stderr)
        assert "OTEL_EXPORTER_OTLP_HEADERS" in rank.stderr


@pytest.mark.long
def test_a_crash_is_sent_to_a_dead_endpoint_for_thirty_seconds_and_the_file_is_written(tmp_path: Path) -> None:
    with play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}"}) as rank:
        rank.do("issue", n=10)
        rank.end("die", number=9)
        assert rank.monitor_end() < FAILED_SECONDS + 5.0
        assert (tmp_path / "dumps" / "otel_fr_rank_0").exists()
        assert not rank.ring.exists()


@pytest.mark.long
@pytest.mark.parametrize("first", ["ok", "busy"])
def test_a_collector_that_is_away_when_a_rank_dies_hears_of_it_when_it_is_back(first: str, tmp_path: Path) -> None:
    """Also if the rank began while the collector was away."""
    with grpc_sink(mode=first) as sink, play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as rank:
        sink.wait(lambda: sink.requests, what="report")
        sink.mode = "busy"
        rank.end("die", number=9)
        died = time.monotonic()
        sink.wait(lambda: time.monotonic() > died + 7.0, what="longer than after a clean end")
        sink.mode = "ok"
        assert sink.event("torch.rank.exited").report["exit"]["signal"] == 9
        rank.monitor_end()


def test_a_rank_s_exit_does_not_wait_for_a_slow_endpoint(tmp_path: Path) -> None:
    with grpc_sink(delay=PATIENCE) as sink:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, "OTEL_EXPORTER_OTLP_TIMEOUT": str(PATIENCE)}
        with play(tmp_path, env) as rank:
            sink.event("torch.rank.started")
            sink.mode = "slow"
            rank.do("issue", n=100)
            rank.do("say_bye")
            assert not sink.spans, "the endpoint has answered none of them"
            sink.mode = "ok"
            rank.end("leave", clean=True)


def test_losses_at_a_dead_endpoint_are_reported_and_the_rest_arrives_when_it_returns(tmp_path: Path) -> None:
    port, issued = free_port(), 30_000
    with grpc_sink() as reports:
        env = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": reports.address,
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
            "CAPACITY": "100000",
        }
        with play(tmp_path, env) as rank:
            for _ in range(5):
                rank.do("issue", n=issued // 5)

            def dropped() -> int:
                told = [event.report["dropped"]["spans"] for event in reports.events if "dropped" in event.report]
                return int(told[-1]) if told else 0  # brief reports do not have the count

            # A batch in transfer when the endpoint comes back may still arrive.
            kept = SpanBatching().queue_size + SpanBatching().batch_size
            reports.wait(lambda: dropped() >= issued - kept, what="the queue is full")
            with grpc_sink(port=port) as sink:
                sink.wait(lambda: sink.spans, what="the first spans")
                # Spans that were given up may have arrived nevertheless.
                reports.wait(lambda: len(sink.spans) + dropped() >= issued, what="each span arrived or was dropped")
                assert len(sink.spans) <= kept
                rank.end("leave", clean=True)


def test_a_refusing_endpoint_costs_spans_and_nothing_else(tmp_path: Path) -> None:
    with grpc_sink(mode="refuse") as sink, play(tmp_path, {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address}) as rank:
        rank.do("issue", n=100)
        sink.wait(lambda: sink.requests >= 2)
        before, start = sink.requests, time.monotonic()
        time.sleep(1.5)
        rate = (sink.requests - before) / (time.monotonic() - start)
        assert rate < 6, "refused requests are not sent in a tight loop"
        sink.mode = "ok"
        event = sink.event("torch.rank.progress", where=lambda r: r["dropped"]["spans"] == 100)
        assert event.report["dropped"]["reports"] > 0
        rank.do("issue", n=5)
        sink.wait(lambda: len(sink.spans) == 5)


@pytest.mark.parametrize(("variable", "spans"), [("TRACES", 0), ("LOGS", 7)])
def test_export_may_be_switched_off(variable: str, spans: int, tmp_path: Path) -> None:
    """Without traces otel-fr sends nothing. Without logs, spans are still useful."""
    with grpc_sink() as sink:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.address, f"OTEL_{variable}_EXPORTER": "none"}
        with play(tmp_path, env) as rank:
            rank.do("issue", n=7)
            rank.do("say_bye")
            rank.end("leave", clean=True)
            rank.monitor_end()
        assert len(sink.spans) == spans
        assert sink.events == []


def test_unusable_settings_cost_the_export_and_nothing_else(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_COMPRESSION": "lzma"}
    with play(tmp_path, env) as rank:
        rank.do("issue", complete=None)
        rank.end("die", number=9)
        rank.monitor_end()
        assert (tmp_path / "dumps" / "otel_fr_rank_0").exists()
        assert "cannot export" in rank.stderr


@pytest.mark.long
def test_a_reader_of_the_job_s_output_does_not_wait_for_the_monitor(tmp_path: Path) -> None:
    """A launcher that captures a rank's output waits for each holder of the pipe, so the monitor must not hold it."""
    with grpc_sink(delay=8.0) as sink:
        env = environment(OTEL_EXPORTER_OTLP_ENDPOINT=sink.address, OTEL_FR_DUMP_DIR=str(tmp_path))
        commands = [{"do": "issue", "n": 10}, {"do": "die", "number": 9}]
        lines = "".join(json.dumps(command) + "\n" for command in commands)
        process = subprocess.Popen(
            [sys.executable, str(PLAYER), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert process.stdout is not None
        monitor = json.loads(process.stdout.readline())["monitor"]
        sink.event("torch.rank.started")
        sink.mode = "slow"
        process.communicate(lines, timeout=PATIENCE)
        assert process.returncode == -9
        assert Path(f"/proc/{monitor}/exe").exists(), "it still waits for its request"
        sink.mode = "ok"
        until(lambda: not Path(f"/proc/{monitor}/exe").exists())


def test_a_ring_that_cannot_be_read_is_reported_and_ends_the_monitor(tmp_path: Path) -> None:
    (tmp_path / "ring").write_bytes(b"no ring" * 1000)
    command = [sys.executable, "-m", "otel_fr.monitor", "--ring", str(tmp_path / "ring")]
    found = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert found.returncode == 1
    assert "this rank is not watched" in found.stderr
    assert found.stdout == ""


def test_the_monitor_never_imports_torch(tmp_path: Path) -> None:
    code = "import sys, otel_fr.monitor.__main__; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment()}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
