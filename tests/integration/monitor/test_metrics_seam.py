"""Metrics through OpenTelemetry's own exporters, to a server without a metrics service."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from otel_fr import otlp_sender
from otel_fr.monitor import logs
from tests.support.http_servers import Handler, http_server
from tests.support.otlp_sink import grpc_sink
from tests.support.rank_metrics import metrics_of

PROTOCOLS = ("grpc", "http/protobuf")


@pytest.fixture
def request_() -> ExportMetricsServiceRequest:
    return ExportMetricsServiceRequest.FromString(metrics_of(1))


class _Unknown(Handler):
    def do_POST(self) -> None:
        self.content()
        self.reply(404)


@pytest.fixture
def nowhere() -> Iterator[str]:
    with http_server(_Unknown) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_does_not_know_metrics_is_seen_to_refuse_them(
    protocol: str, nowhere: str, monkeypatch: pytest.MonkeyPatch, request_: ExportMetricsServiceRequest
) -> None:
    seen: list[bool] = []

    def note(thread: str, is_refused: bool) -> bool:
        seen.append(is_refused)
        return True

    names = ("opentelemetry", "urllib3", "requests", "otel_fr.monitor.telemetry.export")
    kept = [(logging.getLogger(name), logging.getLogger(name).propagate) for name in names]
    handler = logging.NullHandler()
    try:
        logs.watch_exporters(handler, note)
        with grpc_sink() as sink:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sink.address if protocol == "grpc" else nowhere)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
            assert not otlp_sender.sender_from_env("metrics").send(request_, 1)
    finally:
        for logger, propagate in kept:
            logger.handlers[:] = []
            logger.propagate = propagate
    assert True in seen
