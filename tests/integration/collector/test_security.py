"""TLS and client certificates on every port, and tokens, used by real monitors and two tenants."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from otel_fr_collector.receive.grpc_server import MAX_STREAMS

from otel_fr.config import Config
from otel_fr.control.v1 import control_pb2
from otel_fr.monitor.control.client import ControlClient
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.otlp_sender import GrpcTarget, grpc_target, sender_from_env
from tests.support.certificates import Certificates, write_certificate
from tests.support.collector_process import Collector, running
from tests.support.commands import otel_fr
from tests.support.grpc_calls import TRACES, WATCH, refused, stream, unary
from tests.support.otlp_messages import spans
from tests.support.played_job import Job
from tests.support.tokens import OTHER_TEAM, TEAM, WRITER, bearer, token_options, write_tokens
from tests.support.waiting import PATIENCE, until, wait_for


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certs")


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "tokens")


def tls_channel(collector: Collector, certificates: Certificates, *, client: bool = False) -> grpc.Channel:
    return certificates.channel(collector.grpc.replace("127.0.0.1", "localhost"), client=client)


def test_all_ports_speak_tls_and_nothing_else(tmp_path: Path, certificates: Certificates) -> None:
    options = certificates.server_options()
    with running(tmp_path / "run", *options, tls=certificates.context()) as collector:
        assert collector.http.startswith("https://")
        assert collector.get("/healthz") == "ok\n"
        assert collector.post("/v1/traces", spans(1)).status == 200
        with tls_channel(collector, certificates) as channel:
            assert unary(channel, TRACES)(spans(2), timeout=PATIENCE) == b""
        plain = refused(lambda: collector.unary(TRACES)(spans(3), timeout=5))
        left = collector.metric("otel_fr_collector_tls_certificate_expiry_timestamp_seconds") - time.time()
        assert 0 < left <= 86_400
        assert plain in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        collector.tls = ssl.create_default_context()
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            collector.get("/healthz")


def test_without_a_client_certificate_no_port_lets_one_in(tmp_path: Path, certificates: Certificates) -> None:
    options = certificates.server_options(clients=True)
    with running(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
        assert collector.get("/healthz") == "ok\n"
        assert collector.post("/v1/traces", spans(1)).status == 200
        with tls_channel(collector, certificates, client=True) as channel:
            assert unary(channel, TRACES)(spans(2), timeout=PATIENCE) == b""
        with tls_channel(collector, certificates) as channel:
            assert refused(lambda: unary(channel, TRACES)(spans(3), timeout=PATIENCE)) == grpc.StatusCode.UNAVAILABLE
        strangers = Certificates(tmp_path / "strangers")
        stranger = certificates.context()
        stranger.load_cert_chain(strangers.client_cert, strangers.client_key)
        for context in (certificates.context(), stranger):
            collector.tls = context
            with pytest.raises(OSError, match=r"(?i)certificate|unknown ca|closed|reset|EOF"):
                collector.get("/healthz")
        collector.tls = certificates.context(client=True)
        assert collector.metric("otel_fr_collector_items_received_total", kind="other") == 2


def test_renewed_certificates_and_client_cas_come_into_force_without_a_restart(
    tmp_path: Path, certificates: Certificates
) -> None:
    options = certificates.server_options(clients=True)
    with running(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
        assert collector.get("/healthz") == "ok\n"
        fresh = Certificates(tmp_path / "fresh")
        for source, place in (
            (fresh.key, certificates.key),
            (fresh.cert, certificates.cert),
            (fresh.ca_file, certificates.ca_file),
        ):
            place.write_bytes(source.read_bytes())
        collector.tls = fresh.context(client=True)

        def works() -> bool:
            try:
                return collector.get("/healthz") == "ok\n"
            except OSError:
                return False

        assert wait_for(works)

        def rpc_works() -> bool:
            try:
                with tls_channel(collector, fresh, client=True) as channel:
                    return unary(channel, TRACES)(spans(1), timeout=PATIENCE) == b""
            except grpc.RpcError:
                return False

        assert wait_for(rpc_works)
        before = certificates.context()
        before.load_verify_locations(fresh.ca_file)
        before.load_cert_chain(certificates.client_cert, certificates.client_key)
        collector.tls = before
        assert not works()  # its CA is no longer trusted


def test_a_renewal_that_cannot_be_used_leaves_the_old_certificate(tmp_path: Path, certificates: Certificates) -> None:
    options = certificates.server_options()
    with running(tmp_path / "run", *options, tls=certificates.context()) as collector:
        assert collector.get("/healthz") == "ok\n"
        certificates.cert.write_bytes(b"half a certific")

        def is_reported() -> bool:
            collector.get("/healthz")
            return "keeping the old one" in collector.err_file.read_text()

        assert wait_for(is_reported)


def test_an_expired_certificate_is_refused_by_clients_and_at_the_start(
    tmp_path: Path, certificates: Certificates
) -> None:
    with running(tmp_path / "run", *certificates.server_options(), tls=certificates.context()) as collector:
        assert collector.get("/healthz") == "ok\n"
        certificates.renew_server(days=-1)

        def expired() -> bool:
            try:
                collector.get("/healthz")
            except urllib.error.URLError as error:
                return "expired" in str(error)
            return False

        assert wait_for(expired)
        with tls_channel(collector, certificates) as channel:
            assert refused(lambda: unary(channel, TRACES)(spans(1), timeout=PATIENCE)) == grpc.StatusCode.UNAVAILABLE
    assert "expired on" in check(*certificates.server_options())


def test_a_client_whose_certificate_has_expired_is_not_let_in(tmp_path: Path, certificates: Certificates) -> None:
    from datetime import datetime, timedelta, timezone

    past = datetime.now(timezone.utc) - timedelta(days=1)
    expired = certificates.ca.issue_cert("rank@job", not_before=past - timedelta(days=2), not_after=past)
    write_certificate(expired, certificates.client_cert, certificates.client_key)
    options = certificates.server_options(clients=True)
    with running(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
        with pytest.raises(OSError, match=r"(?i)expired|closed|reset|EOF"):
            collector.get("/healthz")
        with tls_channel(collector, certificates, client=True) as channel:
            assert refused(lambda: unary(channel, TRACES)(spans(3), timeout=PATIENCE)) == grpc.StatusCode.UNAVAILABLE


def check(*options: str) -> str:
    done = otel_fr("collector", "--check", *options)
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_being_open_to_others_without_protection_is_warned_of(tmp_path: Path, certificates: Certificates) -> None:
    with running(tmp_path / "open", "--grpc", "0.0.0.0:0") as collector:
        text = collector.err_file.read_text()
        assert "without TLS" in text
        assert "without --tokens" in text
        assert "--http" not in text.replace("--otlp-http", "")  # it listens only on loopback
    with running(tmp_path) as quiet:
        assert "WARNING" not in quiet.err_file.read_text()


@pytest.fixture
def environment(
    tmp_path: Path, certificates: Certificates, tokens_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Collector]:
    """A collector with all protections, and the standard variables for them in the environment."""
    options = (*certificates.server_options(clients=True), "--tokens", str(tokens_file))
    with running(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # would replace the given certificate
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificates.ca_file))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", str(certificates.client_cert))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CLIENT_KEY", str(certificates.client_key))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{WRITER}")
        place = collector.grpc.replace("127.0.0.1", "localhost")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"https://{place}")
        yield collector


@pytest.mark.parametrize("over_http", [False, True])
def test_any_opentelemetry_exporter_can_use_all_protections(
    environment: Collector, monkeypatch: pytest.MonkeyPatch, over_http: bool
) -> None:
    if over_http:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", environment.otlp_http)
        exporter: SpanExporter = HttpSpanExporter()
    else:
        exporter = OTLPSpanExporter()
    with TracerProvider().get_tracer("web").start_as_current_span("GET /") as span:
        pass
    assert exporter.export([span]) == SpanExportResult.SUCCESS  # type: ignore[list-item]
    exporter.shutdown()


def test_the_monitors_control_stream_uses_the_exporters_protections(environment: Collector) -> None:
    target = grpc_target(sender_from_env("logs"))
    assert target is not None
    with watching(target) as client:
        assert wait_for(lambda: client.listening)
        channel = grpc.secure_channel(target.endpoint, target.credentials)
        job = Job(OverChannel(channel, target.headers), 2, "job-7")
        job.run = "run-7"
        with job:
            job.hang(1)
            command = until(client.inbox.take)
    assert command.dump.incident_id


class OverChannel:
    """Sends a played job's requests over a channel, with its token."""

    def __init__(self, channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        self._channel, self._metadata = channel, metadata

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return unary(self._channel, method)(data, metadata=self._metadata, wait_for_ready=True, **options)


@contextlib.contextmanager
def watching(target: GrpcTarget) -> Iterator[ControlClient]:
    meta = {"job_id": "job-7", "run_id": "run-7", "world_size": 2}
    client = ControlClient(target, lambda: RankIdentity.of(meta, Config(), 1), lambda: None)
    client.start()
    yield client
    client.stop()


def test_a_monitor_whose_token_is_refused_says_so_once(
    environment: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20not-the-right-one-at-all")
    target = grpc_target(sender_from_env("logs"))
    assert target is not None
    tries: list[float] = []
    with watching(target) as client:
        monkeypatch.setattr(client._stop, "wait", tries.append)
        assert wait_for(lambda: len(tries) >= 3)
        client.stop()
    assert caplog.text.count("the token is not known") == 1
    assert "not-the-right-one" not in caplog.text


STALLED = 400
"""TLS handshakes on each port that begin and stop."""
CHANNELS = 20
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The first bytes of a handshake (RFC 8446, 4.1.2)."""


def test_stalled_handshakes_and_streams_of_one_tenant_keep_no_incident_of_another(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    options = ("--quiet", *certificates.server_options(), *token_options(tmp_path))
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(running(tmp_path, *options, tls=certificates.context()))
        for address in (collector.grpc, collector.http.partition("://")[2]):
            host, _, port = address.rpartition(":")
            for _ in range(STALLED):
                stack.enter_context(socket.create_connection((host, int(port)))).sendall(CLIENT_HELLO)
        place = collector.grpc.replace("127.0.0.1", "localhost")
        streams = []
        for number in range(CHANNELS):
            watch = stream(stack.enter_context(certificates.channel(place)), WATCH)
            for rank in range(MAX_STREAMS):
                request = control_pb2.WatchRequest(job_id=f"team-a/{number}", run_id="r", rank=rank)
                streams.append(watch(request.SerializeToString(), metadata=bearer(TEAM)))
        other = OverChannel(stack.enter_context(certificates.channel(place)), bearer(OTHER_TEAM))
        with Job(other, 4, "team-b/light") as job:
            job.hang(2)
            assert collector.wait_cause()["culprit_ranks"] == [2]
        assert sum(one.is_active() for one in streams) == len(streams)
        assert collector.get("/healthz") == "ok\n"
