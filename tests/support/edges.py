"""Real clients, backends and certificates for the collector's edges."""

from __future__ import annotations

import contextlib
import hashlib
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from tests.support.collector import TRACES, Collector, attribute

PROTOBUF = "application/x-protobuf"
WRITER, TEAM, READER = "writer-0123456789", "team-a-0123456789", "reader-0123456789"
TEAM_READER = "team-a-reads-0123456789"


@dataclass
class Answer:
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Edge(Collector):
    """A collector of which the OTLP/HTTP port is used too; ``tls``: how its clients see its certificate."""

    def __init__(self, folder: Path, *options: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(folder, *options)
        found = re.search(r"OTLP/HTTP on (\S+);", self.err_file.read_text())
        self.otlp_http = found[1] if found else ""
        self.tls = tls

    def post(self, path: str, body: bytes, kind: str = PROTOBUF, **headers: str) -> Answer:
        url = path if "://" in path else self.otlp_http + path
        given = {"Content-Type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self._open(urllib.request.Request(url, body, given))

    def fetch(self, path: str, **headers: str) -> Answer:
        return self._open(urllib.request.Request(self.http + path, headers=headers))

    def get(self, path: str) -> str:
        return self.fetch(path).body.decode()

    def _open(self, request: urllib.request.Request) -> Answer:
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.tls) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read())

    def resident(self) -> int:
        """The most memory the process has ever had, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) * 1024

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


@contextlib.contextmanager
def serving(folder: Path, *options: str, tls: ssl.SSLContext | None = None) -> Iterator[Edge]:
    folder.mkdir(exist_ok=True)
    collector = Edge(folder, *options, tls=tls)
    try:
        yield collector
    finally:
        collector.channel.close()
        if collector.process.poll() is None:
            collector.process.kill()
            collector.process.wait()


def spans(number: int, service: str = "web", size: int = 10, trace: bytes = b"") -> bytes:
    """A request of one foreign span that no other number has."""
    span = Span(name=f"GET /{number}", trace_id=trace or number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"))
    span.attributes.append(attribute("padding", "x" * size))
    resource = Resource(attributes=[attribute("service.name", service)])
    scopes = [ScopeSpans(spans=[span])]
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=scopes)]
    ).SerializeToString()


@dataclass
class Backend:
    """What a backend has taken, and how it answers."""

    taken: list[bytes] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    tried: list[float] = field(default_factory=list)
    busy: int = 0
    """So many requests more are sent away."""
    retry_after: float | None = None
    delay: float = 0.0
    refuses: bool = False
    url: str = ""

    def decide(self) -> str:
        self.tried.append(time.monotonic())
        time.sleep(self.delay)
        if self.refuses:
            return "refused"
        if self.busy:
            self.busy -= 1
            return "busy"
        return "taken"

    def keep(self, data: bytes, headers: dict[str, str], path: str) -> None:
        self.taken.append(data)
        self.at.append(time.monotonic())
        self.headers.append(headers)
        self.paths.append(path)


@contextlib.contextmanager
def grpc_backend(address: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> Iterator[Backend]:
    backend = Backend()

    def export(data: bytes, context: grpc.ServicerContext) -> bytes:
        match backend.decide():
            case "busy":
                if backend.retry_after is not None:
                    from otel_fr_collector.otlp import status as otlp_status

                    context.set_trailing_metadata(otlp_status.retry_trailers(14, "later", backend.retry_after)[:1])
                context.abort(grpc.StatusCode.UNAVAILABLE, "later")
            case "refused":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "never")
        backend.keep(data, {str(key): str(value) for key, value in context.invocation_metadata()}, "")
        return b""

    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
    _, service, method = TRACES.split("/")
    handler = {method: grpc.unary_unary_rpc_method_handler(export)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handler),))
    if credentials is None:
        backend.url = f"grpc://127.0.0.1:{server.add_insecure_port(address)}"
    else:
        backend.url = f"grpcs://localhost:{server.add_secure_port(address, credentials)}"
    server.start()
    try:
        yield backend
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def http_backend() -> Iterator[Backend]:
    backend = Backend()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            outcome = backend.decide()
            self.send_response({"taken": 200, "busy": 503, "refused": 400}[outcome])
            if outcome == "busy" and backend.retry_after is not None:
                self.send_header("Retry-After", f"{backend.retry_after:.0f}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            if outcome == "taken":
                backend.keep(data, {key.lower(): value for key, value in self.headers.items()}, self.path)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    backend.url = f"http://127.0.0.1:{server.server_port}/otlp"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield backend
    finally:
        server.shutdown()
        server.server_close()


class Certificates:
    """A CA, a server's certificate for localhost and a client's, as PEM files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.ca = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self.cert, self.key = folder / "server.pem", folder / "server.key"
        self.client_cert, self.client_key = folder / "client.pem", folder / "client.key"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.renew_server()
        write(self.ca.issue_cert("rank@job"), self.client_cert, self.client_key)

    def renew_server(self, days: float = 1.0) -> None:
        """A new certificate; ``days`` below 0: one that has expired."""
        now = datetime.now(timezone.utc)
        start, end = now - timedelta(days=3), now + timedelta(days=days)
        issued = self.ca.issue_cert("localhost", "127.0.0.1", not_before=start, not_after=end)
        write(issued, self.cert, self.key)

    def server_options(self, *, clients: bool = False) -> tuple[str, ...]:
        options = ("--tls-cert", str(self.cert), "--tls-key", str(self.key))
        return (*options, "--tls-client-ca", str(self.ca_file)) if clients else options

    def context(self, *, client: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca_file)
        if client:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context

    def channel(self, address: str, *, client: bool = False) -> grpc.Channel:
        pair = (self.client_key.read_bytes(), self.client_cert.read_bytes()) if client else (None, None)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(self.ca_file.read_bytes(), *pair))


def write(issued: trustme.LeafCert, cert: Path, key: Path) -> None:
    """A certificate with its chain, and its key, put in place as a renewal does: each by renaming."""
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    for path, data in ((key, issued.private_key_pem.bytes()), (cert, chain)):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.rename(path)


def write_tokens(path: Path) -> Path:
    """A tokens file: who may do all, or what is of team-a."""
    hashed = hashlib.sha256(READER.encode()).hexdigest()
    lines = [f"{WRITER} write *", f"{TEAM} write team-a/", f"sha256:{hashed} read *", f"{TEAM_READER} read team-a/"]
    path.write_text("# who may do what\n" + "\n".join(lines) + "\n")
    return path


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


def refused(send: Callable[[], object]) -> grpc.StatusCode:
    """The status with which the call is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        send()
    code: grpc.StatusCode = caught.value.code()
    return code
