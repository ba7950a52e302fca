"""Prepared requests through OpenTelemetry's own exporters: exactly these spans arrive, as the environment says."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import certifi
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_fr import otlp_sender
from otel_fr.monitor.telemetry.export import reports_request, spans_request
from otel_fr.monitor.telemetry.queues import QueuedReport
from otel_fr.otlp_attributes import attribute
from tests.support.otlp_sink import Sink, grpc_sink, http_sink, make_certificate

SPANS = [
    Span(name=f"all_reduce {i}", trace_id=bytes([i]) * 16, span_id=bytes([i]) * 8, start_time_unix_nano=i)
    for i in (1, 2, 3)
]
RESOURCE = Resource(attributes=[attribute("torch.rank", 3)])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def _sink(protocol: str, tls: tuple[Path, Path] | None) -> AbstractContextManager[Sink]:
    return grpc_sink(tls) if protocol == "grpc" else http_sink(tls)


def _send_both() -> None:
    chunks = [ScopeSpans(spans=SPANS[:2]).SerializeToString(), ScopeSpans(spans=SPANS[2:]).SerializeToString()]
    assert otlp_sender.sender_from_env("traces").send(spans_request(RESOURCE, chunks), 3)
    record = LogRecord(event_name="torch.rank.started", body=AnyValue(string_value='{"n": 1}'))
    assert otlp_sender.sender_from_env("logs").send(reports_request([QueuedReport(record, 0, False, RESOURCE)]), 1)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_the_exact_spans_and_events_arrive_with_the_settings_of_the_environment(
    protocol: str,
    secure: bool,
    compression: str,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with _sink(protocol, certificate if secure else None) as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc,x-tenant=t7")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
        if secure:
            # Containers often set this for other programs. The endpoint's certificate must win.
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate[1]))
        _send_both()
    assert sink.spans == SPANS
    assert sink.span_resources == [{"torch.rank": 3}]
    assert [(event.name, event.report, event.resource) for event in sink.events] == [
        ("torch.rank.started", {"n": 1}, {"torch.rank": 3})
    ]
    for headers in sink.headers:
        assert headers["authorization"] == "Bearer abc"
        assert headers["x-tenant"] == "t7"
        if protocol == "http/protobuf":
            assert headers.get("content-encoding", "none") == compression
            assert headers["content-type"] == "application/x-protobuf"


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_settings_of_one_signal_win_over_the_general_ones(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/v1/traces" if protocol == "http/protobuf" else ""
    with _sink(protocol, None) as general, _sink(protocol, None) as traces:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", general.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", traces.address + path)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        _send_both()
    assert (len(traces.spans), len(traces.events)) == (3, 0)
    assert (len(general.spans), len(general.events)) == (0, 1)


def test_a_refused_request_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc_sink(mode="refuse") as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
        sender = otlp_sender.sender_from_env("traces")
        assert not sender.send(spans_request(RESOURCE, [ScopeSpans(spans=SPANS).SerializeToString()]), 3)
    assert sink.requests == 1


def test_the_http_encoder_still_encodes_what_is_not_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user of the SDK in the same process is not affected."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    with http_sink() as sink:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address)
        otlp_sender.sender_from_env("traces")
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
        provider.get_tracer("otel_fr").start_span("theirs").end()
    assert [span.name for span in sink.spans] == ["theirs"]


@pytest.mark.parametrize(
    ("env", "protocol"),
    [
        ({}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http/protobuf"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            "http/protobuf",
        ),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "grpc"),
    ],
)
def test_protocol_of_the_traces(env: dict[str, str], protocol: str) -> None:
    assert otlp_sender.protocol_of("traces", env) == protocol


@pytest.mark.parametrize(
    ("url", "protocol", "says"),
    [
        ("http://h:4317", "grpc", ""),
        ("http://h:4318", "http/protobuf", ""),
        ("https://otlp.example.org", "grpc", ""),
        ("http://h:4318", "grpc", "use port 4317, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
        ("http://h:4317", "http/protobuf", "use port 4318, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
        ("h:4317", "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=h:4317 has no scheme: write http://h:4317 (https://"),
        ("grpc://h:4317", "grpc", "write http://h:4317 (https://"),
        ("http://h:port", "grpc", "its host or port cannot be read"),
        ("http://me:secret@h:4317", "grpc", "has credentials, which gRPC does not send"),
        ("http://me:secret@h:4318", "http/protobuf", ""),
        ("", "grpc", ""),
    ],
)
def test_a_mistake_in_an_endpoint_is_named_with_what_to_write_instead(url: str, protocol: str, says: str) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
    found = otlp_sender.endpoint_mistake("traces", env)
    assert says in found
    assert bool(found) is bool(says)


def test_the_control_client_gets_the_exporter_s_endpoint_and_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    def target(**env: str) -> Any:
        for key, value in env.items():
            monkeypatch.setenv(key, value)
        return otlp_sender.grpc_target(otlp_sender.sender_from_env("logs"))

    found = target(OTEL_EXPORTER_OTLP_ENDPOINT="http://h:4317", OTEL_EXPORTER_OTLP_HEADERS="X-Tenant=t7")
    assert (found.endpoint, found.insecure, found.headers) == ("h:4317", True, (("x-tenant", "t7"),))
    found = target(OTEL_EXPORTER_OTLP_ENDPOINT="https://h:4317")
    assert not found.insecure
    assert found.credentials is not None
    assert target(OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf") is None
