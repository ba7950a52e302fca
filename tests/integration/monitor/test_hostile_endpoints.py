"""A misbehaving OTLP endpoint costs the monitor a request, but not its memory or its thread."""

from __future__ import annotations

import resource
from contextlib import AbstractContextManager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_fr.otlp_sender import CHANNEL_OPTIONS, sender_from_env
from tests.support.hostile_servers import Behaviour, bomb, drips, floods, hangs, hostile_server
from tests.support.otlp_backends import Backend, grpc_backend, http_backend
from tests.support.relay import Relay
from tests.support.waiting import wait_for

GRPC_SECONDS = 60.0
"""Seconds after which gRPC gives up a connection by default."""


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
    """The deadline is for the complete response. Otherwise a dripping response would block the sender forever."""
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
    """The exporters give up if the requested delay is longer than the rest of the timeout."""
    with server() as backend:
        environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc" if server is grpc_backend else "http/protobuf")
        backend.busy, backend.retry_after = 100, seconds
        assert not send(environment, backend.url.replace("grpc://", "http://"))


def test_a_connection_on_which_nothing_comes_any_more_is_made_anew(environment: pytest.MonkeyPatch) -> None:
    """As after a cut link, or after a device on the way has forgotten the connection."""
    quick = tuple((name, 500 if "keepalive" in name or "timeout" in name else value) for name, value in CHANNEL_OPTIONS)
    environment.setattr("otel_fr.otlp_sender.CHANNEL_OPTIONS", quick)
    environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with grpc_backend() as backend:
        host, _, port = backend.url.rpartition("/")[2].rpartition(":")
        with Relay(host, int(port)) as relay:
            environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{relay.port}")
            sender = sender_from_env("traces")
            assert wait_for(lambda: sender.send(ExportTraceServiceRequest(), 1))
            relay.lose()
            assert wait_for(lambda: sender.send(ExportTraceServiceRequest(), 1), GRPC_SECONDS / 2)
