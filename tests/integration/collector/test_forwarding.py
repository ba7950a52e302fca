"""Forwarding to backends: no acknowledged request is lost, whatever happens to either side."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.certificates import Certificates
from tests.support.collector_process import Collector, running
from tests.support.grpc_calls import LOGS, METRICS, TRACES
from tests.support.otlp_backends import Backend, MemoryBackend, grpc_backend, http_backend
from tests.support.otlp_messages import spans
from tests.support.ports import free_address
from tests.support.rank_metrics import metrics_of
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE, wait_for

KILLS = int(os.environ.get("OTEL_FR_TEST_KILLS", "4"))
"""SIGKILLs of the collector under load."""
QUEUE = "otel_fr_collector_forward_queue_bytes"
DROPPED = "otel_fr_collector_forward_requests_dropped_total"


def test_what_was_acknowledged_survives_any_end_at_any_moment(tmp_path: Path) -> None:
    """Clients send while the collector ends again and again. Each answered request reaches the backend."""
    moments = random.Random(20261121)
    ends = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
    acknowledged: list[bytes] = []
    numbers = iter(range(1, 10**9))
    with grpc_backend() as backend:
        options = ("--data", str(tmp_path / "data"), "--forward", backend.url)
        for turn in range(KILLS):
            with running(tmp_path / f"run-{turn}", *options) as collector:
                workers = [threading.Thread(target=_send_until_dead, args=(collector, numbers, acknowledged))]
                workers += [threading.Thread(target=_send_until_dead, args=(collector, numbers, acknowledged, True))]
                enough = len(acknowledged) + 6
                for worker in workers:
                    worker.start()
                assert wait_for(lambda: len(acknowledged) >= enough)  # noqa: B023
                time.sleep(moments.uniform(0, 0.3))  # the test is about the moment of the end
                backend.delay = moments.choice([0.0, 0.05])
                collector.process.send_signal(ends[turn % len(ends)])
                for worker in workers:
                    worker.join()
                assert collector.process.wait(PATIENCE) in (0, -signal.SIGKILL)
        backend.delay = 0.0
        with running(tmp_path / "last", *options) as collector:
            assert wait_for(lambda: set(acknowledged) <= set(backend.taken))
            assert wait_for(lambda: collector.metric(QUEUE) == 0)
            assert collector.stop() == 0
    assert len(acknowledged) > 5 * KILLS


def _send_until_dead(
    collector: Collector, numbers: Iterator[int], acknowledged: list[bytes], over_http: bool = False
) -> None:
    while True:
        data = spans(next(numbers))
        try:
            if over_http:
                assert collector.post("/v1/traces", data).status == 200
            else:
                collector.unary(TRACES)(data, timeout=PATIENCE)
        except (OSError, grpc.RpcError, ConnectionError):
            return
        acknowledged.append(data)


def test_a_backend_that_comes_late_gets_everything_in_order_after_a_restart_too(tmp_path: Path) -> None:
    address = free_address()
    away = Backend(url=f"grpc://{address}")
    first, second = [spans(n) for n in range(1, 9)], [spans(n) for n in range(9, 13)]
    with VirtualCollector(data=tmp_path, forward=[away]) as collector:
        for data in first:
            collector.send(TRACES, data)
        assert collector.metric(QUEUE) == sum(map(len, first))
        collector.stop()
    with VirtualCollector(collector.time, data=tmp_path, forward=[away]) as collector:
        for data in second:
            collector.send(TRACES, data)
        assert collector.metric(QUEUE) == sum(map(len, [*first, *second]))
        with grpc_backend(address) as backend:
            collector.deliver(lambda: len(backend.taken) == 12)
            assert backend.taken == [*first, *second]
            collector.deliver(lambda: collector.metric(QUEUE) == 0)


def test_each_backend_gets_everything_at_its_own_pace() -> None:
    """One backend is fast, one slow, and one refuses all. None delays another, nor the correlation."""
    with grpc_backend() as fast, http_backend() as slow, grpc_backend() as refusing:
        slow.delay, refusing.refuses = 0.05, True
        with VirtualCollector(forward=[fast, slow, refusing]) as collector, collector.job(2) as job:
            sent = {spans(n) for n in range(1, 31)}
            for data in sent:
                collector.send(TRACES, data)
            job.hang(1)
            assert collector.wait_cause()["culprit_ranks"] == [1]
            collector.deliver(lambda: sent <= set(fast.taken))
            collector.deliver(lambda: sent <= set(slow.taken))
            assert set(slow.paths) == {"/otlp/v1/traces"}
            collector.deliver(lambda: collector.metric(DROPPED, backend=refusing.url, reason="rejected") >= 30)
            assert collector.metric(DROPPED, backend=slow.url) == 0


@pytest.mark.parametrize("kind", [grpc_backend, http_backend])
def test_a_backend_that_asks_for_a_delay_gets_no_request_until_then(
    kind: Callable[[], AbstractContextManager[Backend]],
) -> None:
    with kind() as backend, VirtualCollector(forward=[backend]) as collector:
        backend.busy, backend.retry_after = 1, 1.0
        collector.send(TRACES, spans(1))
        collector.deliver(lambda: backend.taken)
        assert len(backend.tried) == 2
        assert backend.tried[1] - backend.tried[0] >= 1.0


def test_without_a_folder_the_end_waits_for_the_backends_for_a_bounded_time(tmp_path: Path) -> None:
    with grpc_backend() as backend:
        backend.delay = 0.2
        with running(tmp_path / "slow", "--forward", backend.url, "--stop-seconds", "60") as collector:
            for n in range(1, 6):
                collector.send(TRACES, spans(n))
            assert collector.stop() == 0
            assert len(backend.taken) == 5
    with running(tmp_path / "down", "--forward", backend.url, "--stop-seconds", "1") as collector:
        collector.send(TRACES, spans(1))
        assert collector.stop() == 0
        said = collector.err_file.read_text()  # on a busy machine the time may end before the count
        assert "1 requests for" in said or "--stop-seconds elapsed" in said


def test_backends_are_reached_over_tls_with_their_headers(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs")
    pair = [(certificates.key.read_bytes(), certificates.cert.read_bytes())]
    credentials = grpc.ssl_server_credentials(pair, certificates.ca_file.read_bytes(), require_client_auth=True)
    with grpc_backend(credentials=credentials) as secure, http_backend() as other:
        headers = tmp_path / "headers"
        headers.write_text(f"# who we are\n{secure.url} Authorization: Bearer s3cret\n{other.url} X-Scope: a b\n")
        options = ["--forward-ca", str(certificates.ca_file), "--forward-cert", str(certificates.client_cert)]
        options += ["--forward-key", str(certificates.client_key), "--forward-headers", str(headers)]
        options += ["--forward", secure.url, "--forward", other.url]
        with running(tmp_path / "run", *options) as collector:
            collector.send(TRACES, spans(1))
            assert wait_for(lambda: secure.taken and other.taken)
    assert secure.headers[0]["authorization"] == "Bearer s3cret"
    assert other.headers[0]["x-scope"] == "a b"
    assert "authorization" not in other.headers[0]


def test_only_traces_of_incidents_are_sent_on() -> None:
    """This includes spans from before the incident."""
    backend = MemoryBackend()
    with VirtualCollector(forward=[backend], selects=True) as collector, collector.job(3) as job:
        collector.send(TRACES, spans(1))
        job.step()
        calls = [job.ranks[rank].issue(job.world, reduce_op="max" if rank == 1 else "sum") for rank in range(3)]
        job.go_on(calls)
        trace = bytes.fromhex(collector.wait_cause()["trace_id"])
        collector.time.advance(5.0)
    names = [span.name for data in backend.taken for span in _spans(data) if span.trace_id == trace]
    assert sum(name.startswith("all_reduce ") for name in names) == 3  # the ranks' own spans
    assert [name for name in names if name.startswith("INCIDENT ")]
    others = [span for data in backend.taken for span in _spans(data) if span.trace_id != trace]
    assert not [span for span in others if span.name.startswith("GET")]


def test_options_say_what_is_sent_on(tmp_path: Path) -> None:
    with http_backend() as backend:
        options = ["--forward", backend.url, "--forward-mode", "incidents"]
        options += ["--forward-signals", "traces,logs", "--forward-queue-size", "100KB"]
        with running(tmp_path, *options) as collector:
            collector.send(TRACES, spans(1))
            collector.send(METRICS, metrics_of(0))
            collector.send(LOGS, b"\x0a\x00")
            assert wait_for(lambda: "/otlp/v1/logs" in backend.paths)
            assert set(backend.paths) == {"/otlp/v1/logs"}
            backend.busy = 10**6
            for _ in range(9):
                collector.send(LOGS, _padded(12_000))
            assert collector.metric(DROPPED, reason="queue_full") >= 1


def _padded(size: int) -> bytes:
    """Return a request of logs with about this size."""
    record = LogRecord(body=AnyValue(string_value="x" * size))
    logs = ResourceLogs(scope_logs=[ScopeLogs(log_records=[record])])
    return ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString()


def _spans(data: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(data)
    return [span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]


def test_what_is_too_old_is_dropped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with VirtualCollector(data=tmp_path, forward=[MemoryBackend(is_down=True)]) as first:
        first.send(TRACES, spans(1))
    with sqlite3.connect(tmp_path / "forward.sqlite3") as file:
        day = 90_000 * 10**9
        file.execute("UPDATE request SET id = id - ?", (day,))
        file.execute("UPDATE pending SET request = request - ?", (day,))
    with VirtualCollector(first.time, data=tmp_path, forward=[MemoryBackend(name="other")]) as second:
        assert "1 queued requests are for memory" in caplog.text
        second.deliver(lambda: second.metric(DROPPED, backend="memory", reason="expired") == 1)
