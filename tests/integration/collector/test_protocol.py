"""OTLP as specified, over gRPC and HTTP: bodies, encodings, limits, and answers."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from otel_fr_collector.otlp.signals import METHODS

from otel_fr import semconv
from tests.support.collector_process import PROTOBUF, Collector, patched, running
from tests.support.grpc_calls import LOGS, TRACES
from tests.support.otlp_backends import grpc_backend
from tests.support.otlp_messages import spans
from tests.support.played_job import Job
from tests.support.waiting import PATIENCE, wait_for

MIB = 1 << 20
REJECTED = "otel_fr_collector_requests_rejected_total"


def received(collector: Collector, signal: str = "traces", kind: str = "other") -> float:
    return collector.metric("otel_fr_collector_items_received_total", signal=signal, kind=kind)


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("identity", bytes),
        ("gzip", gzip.compress),
        ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("deflate", zlib.compress),
    ],
)
def test_spans_are_accepted_over_http(shared: Collector, encoding: str, encode: Callable[[bytes], bytes]) -> None:
    before = received(shared)
    answer = shared.post("/v1/traces", encode(spans(1)), Content_Encoding=encoding)
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"", PROTOBUF)
    assert received(shared) == before + 1


@pytest.mark.parametrize(("signal", "method"), METHODS.items())
def test_empty_requests_of_all_signals_are_a_success(shared: Collector, signal: str, method: str) -> None:
    assert shared.send(method, b"") == b""
    assert shared.post(f"/v1/{signal}", b"").status == 200
    assert shared.post(f"/v1/{signal}", b"{}", "application/json").body == b"{}"


def test_a_job_is_followed_over_http_as_over_grpc(shared: Collector) -> None:
    class OverHttp:
        """Sends a played job's requests to the HTTP port."""

        def send(self, method: str, data: bytes, **options: Any) -> bytes:
            answer = shared.post({TRACES: "/v1/traces", LOGS: "/v1/logs"}[method], data)
            assert answer.status == 200
            return answer.body

    with Job(OverHttp(), 2, "over-http") as job:
        job.hang(1)
        assert shared.wait_cause(lambda one: one["job"] == "over-http")["culprit_ranks"] == [1]


@pytest.mark.parametrize(
    ("body", "kind", "headers", "status"),
    [
        (b"\xff\xff", PROTOBUF, {}, 400),
        (b"{", "application/json", {}, 400),
        (b"[1]", "application/json", {}, 400),
        (b'{"resourceSpans": 7}', "application/json", {}, 400),
        (b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}', "application/json", {}, 400),
        (b"[" * 100_000, "application/json", {}, 400),
        (b"not gzip", PROTOBUF, {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(b"cut off" * 100, mtime=0)[:-9], PROTOBUF, {"Content_Encoding": "gzip"}, 400),
        (b"", PROTOBUF, {"Content_Encoding": "br"}, 415),
        (b"", "text/plain", {}, 415),
        (bytes(16 * MIB + 1), PROTOBUF, {}, 413),
    ],
)
def test_a_rejected_request_gets_the_reason_in_its_encoding(
    shared: Collector, body: bytes, kind: str, headers: dict[str, str], status: int
) -> None:
    answer = shared.post("/v1/traces", body, kind, **headers)
    assert answer.status == status
    if kind == "application/json":
        error = json.loads(answer.body)
        assert error["code"] == 3
        assert error["message"]
    else:
        found = Status.FromString(answer.body)
        assert found.code in (3, 8, 12)
        assert found.message
        assert answer.headers["content-type"] == PROTOBUF


def test_a_decompression_bomb_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    """384 MiB of zeros in less than 1 MiB. Both ports refuse it, and the process never exceeds the memory limit."""
    bomb = zlib.compressobj(9, wbits=31)
    packed = b"".join([bomb.compress(bytes(64 * MIB)) for _ in range(6)]) + bomb.flush()
    assert len(packed) < MIB
    with running(tmp_path) as collector:
        collector.send(TRACES, spans(1))
        before = collector.resident()
        for _ in range(3):
            assert collector.post("/v1/traces", packed, Content_Encoding="gzip").status == 413
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                collector.send(TRACES, packed)  # as gRPC's own compression would send it
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert collector.resident() - before < 192 * MIB
        assert collector.metric(REJECTED, signal="traces", reason="too_large") == 6
        assert collector.get("/healthz") == "ok\n"


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_spans_are_accepted_over_grpc(shared: Collector, compression: grpc.Compression) -> None:
    before = received(shared)
    assert shared.send(TRACES, spans(1, size=2 * MIB), compression=compression) == b""
    assert received(shared) == before + 1
    with pytest.raises(grpc.RpcError) as caught:
        shared.send(TRACES, gzip.compress(spans(1))[:-5])
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_under_load_clients_are_asked_to_retry_and_lose_nothing(tmp_path: Path) -> None:
    """The queue file is locked, so requests pile up. Further requests are rejected at first, and accepted later."""
    import sqlite3

    size = 3_900_000
    patient = patched(storage__journal__BUSY=PATIENCE)  # so that writes do not fail while the test holds the file
    options = ("--max-queue-size", "32MiB")  # one client may have half of it; here, that is all clients of a port
    with (
        ThreadPoolExecutor(5) as threads,
        grpc_backend() as backend,
        running(
            tmp_path, *options, "--data", str(tmp_path / "data"), "--forward", backend.url, program=patient
        ) as collector,
    ):
        exporter = OTLPSpanExporter(endpoint=f"http://{collector.grpc}", insecure=True, timeout=PATIENCE)
        span = TracerProvider().get_tracer("web").start_span("GET /", attributes={"body": "x" * size})
        span.end()
        holder = sqlite3.connect(tmp_path / "data" / "forward.sqlite3", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        call = collector.unary(TRACES)
        waiting = [call.future(spans(n, size=size), timeout=PATIENCE) for n in range(1, 5)]
        posted = [threads.submit(collector.post, "/v1/traces", spans(n, size=size)) for n in range(5, 9)]
        assert wait_for(lambda: collector.metric("otel_fr_collector_requests_in_flight_bytes") > 8 * size)
        with pytest.raises(grpc.RpcError) as rejected:
            call(spans(9, size=size), timeout=PATIENCE)
        assert rejected.value.code() == grpc.StatusCode.UNAVAILABLE
        trailers = {one.key: one.value for one in rejected.value.trailing_metadata()}
        plain = RetryInfo.FromString(trailers["google.rpc.retryinfo-bin"])
        detail = RetryInfo()
        assert Status.FromString(trailers["grpc-status-details-bin"]).details[0].Unpack(detail)
        assert detail == plain
        assert 1 <= plain.retry_delay.seconds <= 3
        answer = collector.post("/v1/traces", spans(10, size=size))
        assert answer.status == 503
        assert 1 <= int(answer.headers["retry-after"]) <= 3
        assert Status.FromString(answer.body).code == 14
        exported = threads.submit(exporter.export, [span])  # type: ignore[list-item]
        assert wait_for(lambda: collector.metric(REJECTED, reason="client_limit") >= 3)  # the exporter retries
        holder.execute("ROLLBACK")
        for one in waiting:
            assert one.result() == b""
        assert [one.result().status for one in posted] == [200] * 4
        assert exported.result() == SpanExportResult.SUCCESS
        exporter.shutdown()
        assert call(spans(9, size=size), timeout=PATIENCE) == b""
        assert wait_for(lambda: len(set(backend.taken)) == 10)


def test_a_thousand_idle_connections_do_no_harm(tmp_path: Path) -> None:
    with running(tmp_path) as collector:
        idle = []
        for address in (collector.grpc, collector.otlp_http, collector.http):
            host, _, port = address.removeprefix("http://").rpartition(":")
            idle += [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(350)]
        assert len(idle) > 1_000
        with Job(collector, 2) as job:
            job.hang(1)
            assert collector.wait_cause()["culprit_ranks"] == [1]
        assert collector.post("/v1/traces", spans(1)).status == 200
        assert collector.get("/healthz") == "ok\n"
        for one in idle:
            one.close()


@pytest.mark.parametrize(("key", "is_named"), [("", True), (semconv.RANK, False), (semconv.GROUP_ID, False)])
def test_a_span_that_cannot_be_decoded_is_named_if_it_is_of_a_rank(shared: Collector, key: str, is_named: bool) -> None:
    """Resources without a rank, and spans without a process group, are other software's, and are not read further."""
    with Job(shared, 1, "broken") as job:
        job.quiet()
        player = job.ranks[0]
        body = player.spans_request([player.complete(player.issue(job.world), send=False)])
    body = body.replace(b"all_reduce default_pg", b"\xff" * len("all_reduce default_pg"))
    if key:
        body = body.replace(key.encode(), b"x" * len(key))
    with pytest.raises(DecodeError):
        ExportTraceServiceRequest.FromString(body)
    answer = shared.post("/v1/traces", body)
    assert answer.status == 200
    assert (b"cannot be decoded" in answer.body) is is_named
