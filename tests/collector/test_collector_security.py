"""TLS, client certificates and tokens on every port; and that our own monitors can use them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from edges import Certificates, Edge, serving, spans, write
from kit import LOGS, TRACES, WATCH, Job, running, wait_for
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from otel_fr_collector.auth import Tokens, parse_tokens

from otel_fr.control.v1 import control_pb2
from otel_fr.monitor.control import ControlClient
from otel_fr.monitor.otlp import GrpcTarget, grpc_target, make_sender
from otel_fr.monitor.who import Who

WRITER, TEAM, READER = "writer-0123456789", "team-a-0123456789", "reader-0123456789"
TEAM_READER = "team-a-reads-0123456789"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certs")


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    hashed = hashlib.sha256(READER.encode()).hexdigest()
    lines = [f"{WRITER} write *", f"{TEAM} write team-a/", f"sha256:{hashed} read *", f"{TEAM_READER} read team-a/"]
    path.write_text("# who may do what\n" + "\n".join(lines) + "\n")
    return path


def refused(send: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        send()
    code: grpc.StatusCode = caught.value.code()
    return code


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def tls_channel(collector: Edge, certificates: Certificates, *, client: bool = False) -> grpc.Channel:
    return certificates.channel(collector.grpc.replace("127.0.0.1", "localhost"), client=client)


def test_all_ports_speak_tls_and_nothing_else(tmp_path: Path, certificates: Certificates) -> None:
    options = certificates.server_options()
    with serving(tmp_path / "run", *options, tls=certificates.context()) as collector:
        assert collector.http.startswith("https://")
        assert collector.get("/healthz") == "ok\n"
        assert collector.post("/v1/traces", spans(1)).status == 200
        with tls_channel(collector, certificates) as channel:
            assert channel.unary_unary(TRACES)(spans(2), timeout=10) == b""
        plain = refused(lambda: collector.channel.unary_unary(TRACES)(spans(3), timeout=5))
        left = collector.metric("otel_fr_collector_tls_certificate_expiry_timestamp_seconds") - time.time()
        assert 0 < left <= 86_400
        assert plain in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        collector.tls = ssl.create_default_context()
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            collector.get("/healthz")


def test_without_a_client_certificate_no_port_lets_one_in(tmp_path: Path, certificates: Certificates) -> None:
    options = certificates.server_options(clients=True)
    with serving(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
        assert collector.get("/healthz") == "ok\n"
        assert collector.post("/v1/traces", spans(1)).status == 200
        with tls_channel(collector, certificates, client=True) as channel:
            assert channel.unary_unary(TRACES)(spans(2), timeout=10) == b""
        with tls_channel(collector, certificates) as channel:
            assert refused(lambda: channel.unary_unary(TRACES)(spans(3), timeout=5)) == grpc.StatusCode.UNAVAILABLE
        strangers = Certificates(tmp_path / "strangers")
        stranger = certificates.context()
        stranger.load_cert_chain(strangers.client_cert, strangers.client_key)
        for context in (certificates.context(), stranger):
            collector.tls = context
            with pytest.raises(OSError, match=r"(?i)certificate|unknown ca|closed|reset|EOF"):
                collector.get("/healthz")
        collector.tls = certificates.context(client=True)
        assert collector.metric("otel_fr_collector_received_items_total", kind="foreign") == 2


def test_renewed_certificates_and_client_cas_come_into_force_without_a_restart(
    tmp_path: Path, certificates: Certificates
) -> None:
    options = certificates.server_options(clients=True)
    with serving(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
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
                    return bool(channel.unary_unary(TRACES)(spans(1), timeout=5) == b"")
            except grpc.RpcError:
                return False

        assert wait_for(rpc_works)
        before = certificates.context()
        before.load_verify_locations(fresh.ca_file)
        before.load_cert_chain(certificates.client_cert, certificates.client_key)
        collector.tls = before
        assert not works()  # signed by the CA that is not trusted any more


def test_a_renewal_that_cannot_be_used_leaves_the_old_certificate(tmp_path: Path, certificates: Certificates) -> None:
    options = certificates.server_options()
    with serving(tmp_path / "run", *options, tls=certificates.context()) as collector:
        assert collector.get("/healthz") == "ok\n"
        certificates.cert.write_bytes(b"half a certific")

        def told() -> bool:
            collector.get("/healthz")
            return "the old ones stay" in collector.err_file.read_text()

        assert wait_for(told)


def test_an_expired_certificate_is_refused_by_clients_and_at_the_start(
    tmp_path: Path, certificates: Certificates
) -> None:
    with serving(tmp_path / "run", *certificates.server_options(), tls=certificates.context()) as collector:
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
            assert refused(lambda: channel.unary_unary(TRACES)(spans(1), timeout=5)) == grpc.StatusCode.UNAVAILABLE
    assert "has expired" in check(*certificates.server_options())


def test_a_client_whose_certificate_has_expired_is_not_let_in(tmp_path: Path, certificates: Certificates) -> None:
    from datetime import datetime, timedelta, timezone

    past = datetime.now(timezone.utc) - timedelta(days=1)
    expired = certificates.ca.issue_cert("rank@job", not_before=past - timedelta(days=2), not_after=past)
    write(expired, certificates.client_cert, certificates.client_key)
    options = certificates.server_options(clients=True)
    with serving(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
        with pytest.raises(OSError, match=r"(?i)expired|closed|reset|EOF"):
            collector.get("/healthz")
        with tls_channel(collector, certificates, client=True) as channel:
            assert refused(lambda: channel.unary_unary(TRACES)(spans(3), timeout=5)) == grpc.StatusCode.UNAVAILABLE


def check(*options: str) -> str:
    import subprocess
    import sys

    command = [sys.executable, "-m", "otel_fr.cli", "collector", "--check", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2, done.stdout
    return done.stderr


@pytest.fixture
def guarded(tmp_path: Path, tokens_file: Path) -> Iterator[Edge]:
    with serving(tmp_path / "run", "--tokens", str(tokens_file)) as collector:
        yield collector


def test_who_has_no_token_or_a_wrong_one_is_told_so(guarded: Edge) -> None:
    for metadata in ((), bearer("writer-9876543210"), (("authorization", "Basic !!!"),), bearer("")):
        assert refused(lambda m=metadata: guarded.send(TRACES, spans(1), metadata=m)) == (
            grpc.StatusCode.UNAUTHENTICATED
        )
    answer = guarded.post("/v1/traces", spans(1), Authorization="Bearer nonsense")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    for authorization, words in (("", "a token is needed"), ("Bearer nonsense", "the token is not known")):
        answer = guarded.fetch("/api/v1/incidents", **({"Authorization": authorization} if authorization else {}))
        assert (answer.status, answer.headers["www-authenticate"].split()[0]) == (401, "Bearer")
        assert words in json.loads(answer.body)["error"]
    writer = guarded.fetch("/api/v1/jobs", Authorization=f"Bearer {WRITER}")
    assert (writer.status, json.loads(writer.body)) == (403, {"error": "the token is for writing only"})
    assert guarded.fetch("/healthz").status == 200
    assert WRITER not in guarded.err_file.read_text()


def test_a_token_for_writing_does_not_read_and_the_other_way_round(guarded: Edge) -> None:
    assert guarded.send(TRACES, spans(1), metadata=bearer(WRITER)) == b""
    assert guarded.post("/v1/traces", spans(2), Authorization=f"Bearer {WRITER}").status == 200
    assert refused(lambda: guarded.send(TRACES, spans(1), metadata=bearer(READER))) == (
        grpc.StatusCode.PERMISSION_DENIED
    )
    assert guarded.post("/v1/traces", spans(2), Authorization=f"Bearer {READER}").status == 403
    basic = base64.b64encode(f"me:{READER}".encode()).decode()
    for header in (f"Bearer {READER}", f"Basic {basic}"):
        answer = guarded.fetch("/api/v1/incidents", Authorization=header)
        assert json.loads(answer.body) == {"incidents": []}
    assert guarded.fetch("/metrics", Authorization=f"Bearer {WRITER}").status == 403


class Player:
    """Sends a played job's requests with a token."""

    def __init__(self, collector: Edge, token: str) -> None:
        self.collector, self.token = collector, token

    def send(self, method: str, data: bytes) -> bytes:
        return self.collector.send(method, data, metadata=bearer(self.token))


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 405), ("", 405)])
def test_a_page_of_another_site_cannot_make_a_browser_change_anything(guarded: Edge, site: str, status: int) -> None:
    headers = {"Authorization": f"Bearer {READER}"} | ({"Sec_Fetch_Site": site} if site else {})
    assert guarded.post(guarded.http + "/api/v1/incidents", b"", **headers).status == status


def test_a_token_lets_in_only_the_jobs_it_is_for(guarded: Edge) -> None:
    own, other = (Job(Player(guarded, TEAM), 2, name) for name in ("team-a/train", "team-b/train"))  # type: ignore[arg-type]
    with own:
        own.step()
        own.skip(1)
        assert guarded.wait_cause()["job"] == "team-a/train"
    rank = other.ranks[0]
    call = rank.issue(other.world)
    assert refused(rank.send_report) == grpc.StatusCode.PERMISSION_DENIED
    assert refused(lambda: rank.complete(call)) == grpc.StatusCode.PERMISSION_DENIED
    assert {one["job"] for one in guarded.incidents()} == {"team-a/train"}


@pytest.mark.parametrize("stored", [True, False])
def test_a_reader_of_some_jobs_learns_nothing_of_the_others(stored: bool, tmp_path: Path, tokens_file: Path) -> None:
    data = ("--data", str(tmp_path / "data")) if stored else ()
    seen: list[str] = []
    reader = f"Bearer {READER}"

    def get(path: str, token: str) -> dict[str, list[dict[str, str]]]:
        found: dict[str, list[dict[str, str]]] = json.loads(
            collector.fetch(f"/api/v1/{path}", Authorization=f"Bearer {token}").body
        )
        return found

    def listen(opened: threading.Event) -> None:
        headers = {"Authorization": f"Bearer {TEAM_READER}"}
        with urllib.request.urlopen(
            urllib.request.Request(collector.http + "/api/v1/events", headers=headers)
        ) as answer:
            for line in answer:
                seen.append(line.decode())
                opened.set()

    with serving(tmp_path / "run", "--tokens", str(tokens_file), *data) as collector:
        opened = threading.Event()
        listener = threading.Thread(target=listen, args=(opened,), daemon=True)
        listener.start()
        assert opened.wait(10)
        writer = Player(collector, WRITER)
        jobs = [Job(writer, 2, name) for name in ("team-b/train", "team-a/train")]  # type: ignore[arg-type]
        with jobs[0], jobs[1]:
            for job in jobs:
                job.step()
                job.skip(1)
            assert wait_for(lambda: len(get("incidents", READER)["incidents"]) == 2, 20)
            assert [one["job"] for one in get("incidents", TEAM_READER)["incidents"]] == ["team-a/train"]
            assert get("incidents?job=team-b/train", TEAM_READER) == {"incidents": []}
            # What the listener was told a moment ago serves all who may see as much, for a second.
            shown = wait_for(lambda: [one["job"] for one in get("jobs", TEAM_READER)["jobs"]])
            assert shown == ["team-a/train"]
            everything = get("incidents", READER)["incidents"]
            assert {one["job"] for one in [*everything, *get("jobs", READER)["jobs"]]} == {job.id for job in jobs}
            for one in everything:
                whole = json.loads(collector.fetch(f"/api/v1/incidents/{one['id']}", Authorization=reader).body)
                for path in (f"/api/v1/incidents/{one['id']}", whole["job_url"]):
                    status = collector.fetch(path, Authorization=f"Bearer {TEAM_READER}").status
                    assert status == (200 if one["job"] == "team-a/train" else 404)
            assert wait_for(lambda: any("team-a/train" in line for line in seen))
            assert wait_for(lambda: any('"change"' in line for line in seen))
        metrics = collector.fetch("/metrics", Authorization=f"Bearer {TEAM_READER}")
        assert (metrics.status, b"some jobs only" in metrics.body) == (403, True)
    listener.join(10)
    assert not [line for line in seen if "team-b" in line]


@pytest.mark.parametrize("path", ["/metrics", "/metrics%0A", "/metrics?x", "//metrics", "/metrics/", "/%6Detrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_what_is_of_all_jobs_has_no_other_name_for_a_reader_of_some(guarded: Edge, path: str, method: str) -> None:
    headers = {"Authorization": f"Bearer {TEAM_READER}"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(guarded.http + path, headers=headers, method=method), timeout=10)
    assert refused.value.code in (307, 403, 404, 405)
    assert b"otel_fr_collector_" not in refused.value.read()


def test_without_a_job_the_services_name_counts(guarded: Edge) -> None:
    metadata = bearer(TEAM)
    assert guarded.send(TRACES, spans(1, service="team-a/web"), metadata=metadata) == b""
    for service in ("web", "team-b/web", ""):
        code = refused(lambda name=service: guarded.send(TRACES, spans(1, service=name), metadata=metadata))
        assert code == grpc.StatusCode.PERMISSION_DENIED
    both = spans(1, service="team-a/web") + spans(2, service="team-b/web")  # one message after the other is their sum
    assert refused(lambda: guarded.send(TRACES, both, metadata=metadata)) == grpc.StatusCode.PERMISSION_DENIED
    assert refused(lambda: guarded.send(LOGS, b"\xff\xff", metadata=metadata)) == grpc.StatusCode.INVALID_ARGUMENT


def test_commands_are_only_for_whose_job_it_is(guarded: Edge) -> None:
    watch = guarded.channel.unary_stream(WATCH)
    request = control_pb2.WatchRequest(job_id="team-b/train", run_id="r").SerializeToString()
    for metadata, code in (
        ((), grpc.StatusCode.UNAUTHENTICATED),
        (bearer(READER), grpc.StatusCode.PERMISSION_DENIED),
        (bearer(TEAM), grpc.StatusCode.PERMISSION_DENIED),
    ):
        assert refused(lambda m=metadata: list(watch(request, metadata=m, timeout=10))) == code


def test_a_changed_tokens_file_comes_into_force_and_a_broken_one_does_not(guarded: Edge, tokens_file: Path) -> None:
    fresh = "fresh-token-0123456789"
    tokens_file.write_text(f"{fresh} write *\n")
    status = {}

    def changed() -> bool:
        for token in (fresh, WRITER):
            status[token] = guarded.post("/v1/traces", spans(1), Authorization=f"Bearer {token}").status
        return status == {fresh: 200, WRITER: 401}

    assert wait_for(changed), status
    tokens_file.write_text("only-one-word-0123456789\n")
    assert wait_for(lambda: changed() and "the old ones stay" in guarded.err_file.read_text())
    assert "only-one-word" not in guarded.err_file.read_text()


@pytest.mark.parametrize(
    "line",
    ["short write *", f"{WRITER} admin *", f"{WRITER} write", f"{WRITER} write a b"],
)
def test_a_token_line_that_cannot_be_used_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match="line 2") as caught:
        parse_tokens(f"# first\n{line}\n")
    assert line.split()[0] not in str(caught.value)
    path = tmp_path / "tokens"
    path.write_text(line)
    with pytest.raises(ValueError, match="line 1"):
        Tokens(path)


def test_being_open_to_others_without_protection_is_warned_of(tmp_path: Path, certificates: Certificates) -> None:
    with serving(tmp_path / "open", "--grpc", "0.0.0.0:0") as collector:
        text = collector.err_file.read_text()
        assert "without TLS" in text
        assert "no --tokens" in text
        assert "--http" not in text.replace("--otlp-http", "")  # which listens on loopback only
    with running(tmp_path) as quiet:
        assert "WARNING" not in quiet.err_file.read_text()


@pytest.fixture
def environment(
    tmp_path: Path, certificates: Certificates, tokens_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Edge]:
    """A collector with all protections, and the standard variables with which a job's environment names them."""
    options = (*certificates.server_options(clients=True), "--tokens", str(tokens_file))
    with serving(tmp_path / "run", *options, tls=certificates.context(client=True)) as collector:
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # would be taken in place of the certificate given
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
    environment: Edge, monkeypatch: pytest.MonkeyPatch, over_http: bool
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


def test_the_monitors_control_stream_uses_the_exporters_protections(environment: Edge) -> None:
    target = grpc_target(make_sender("logs"))
    assert target is not None
    with watching(target) as client:
        assert wait_for(lambda: client.listening)
        job = Job(Watched(environment, target), 2, "job-7")  # type: ignore[arg-type]
        job.run = "run-7"
        with job:
            job.step()
            job.skip(1)
            command = client.commands.get(timeout=15)
    assert command.dump.incident_id


class Watched:
    """Sends a played job's requests as the monitor's own exporter would."""

    def __init__(self, collector: Edge, target: GrpcTarget) -> None:
        self.channel = grpc.secure_channel(target.endpoint, target.credentials)
        self.headers = target.headers

    def send(self, method: str, data: bytes) -> bytes:
        answer: bytes = self.channel.unary_unary(method)(data, metadata=self.headers, timeout=10)
        return answer


@contextlib.contextmanager
def watching(target: GrpcTarget) -> Iterator[ControlClient]:
    client = ControlClient(target, lambda: Who(0, 0, 2, "job-7", 0, "run-7", "", "host", 1, ""), lambda: None)
    client.start()
    yield client
    client.stop()


def test_a_monitor_whose_token_is_refused_says_so_once(
    environment: Edge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20not-the-right-one-at-all")
    target = grpc_target(make_sender("logs"))
    assert target is not None
    tries: list[float] = []
    with watching(target) as client:
        monkeypatch.setattr(client._stop, "wait", tries.append)
        assert wait_for(lambda: len(tries) >= 3)
        client.stop()
    assert caplog.text.count("the token is not known") == 1
    assert "not-the-right-one" not in caplog.text
