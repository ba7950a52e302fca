"""A monitor's OTLP endpoint that does not behave: it costs the monitor a request, not its memory or its thread."""

from __future__ import annotations

import resource
from contextlib import AbstractContextManager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_fr.otlp_sender import sender_from_env
from tests.support.hostile_servers import Behaviour, bomb, drips, floods, hangs, hostile_server
from tests.support.otlp_backends import Backend, grpc_backend, http_backend


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    return monkeypatch


def send(environment: pytest.MonkeyPatch, url: str) -> bool:
    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    return sender_from_env("traces").send(ExportTraceServiceRequest(), 1)


@pytest.mark.parametrize(("behaviour", "is_sent"), [(hangs, False), (drips, False), (floods, True)])
def test_no_endpoint_blocks_the_sender(environment: pytest.MonkeyPatch, behaviour: Behaviour, *, is_sent: bool) -> None:
    """The deadline is for all of the response: otherwise one that drips would block the sender for ever."""
    with hostile_server(behaviour) as url:
        assert send(environment, url) is is_sent


def test_an_answer_is_not_decompressed(environment: pytest.MonkeyPatch) -> None:
    size = 1 << 28
    with hostile_server(bomb(size)) as url:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert send(environment, url)
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < size // 2


@pytest.mark.parametrize("server", [http_backend, grpc_backend])
@pytest.mark.parametrize("seconds", [86_400.0, -5.0])
def test_no_endpoint_delays_a_retry_beyond_the_timeout(
    environment: pytest.MonkeyPatch, server: type[AbstractContextManager[Backend]], seconds: float
) -> None:
    """The exporters give up when the delay that is asked for is longer than what is left of the timeout."""
    with server() as backend:
        environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc" if server is grpc_backend else "http/protobuf")
        backend.busy, backend.retry_after = 100, seconds
        assert not send(environment, backend.url.replace("grpc://", "http://"))
