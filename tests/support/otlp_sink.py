"""OTLP receivers for tests: real servers, gRPC and HTTP, that keep the requests that they receive."""

from __future__ import annotations

import contextlib
import gzip
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_fr.control.v1.control_pb2 import Command, WatchRequest
from tests.support.grpc_calls import LOGS, TRACES, WATCH
from tests.support.http_servers import Handler, http_server
from tests.support.otlp_messages import attributes
from tests.support.waiting import PATIENCE

_DEFAULTS: dict[str, dict[str, Any]] = {
    "exit": {"signal": 0, "clean": False, "known": True},
    "dropped": {"spans": 0, "reports": 0, "records": 0, "hook_errors": 0},
}
_COUNTS = {"enq": 0, "done": 0, "p2p": 0, "issued": 0, "ended": 0, "gone": False}


def _report(body: dict[str, Any]) -> dict[str, Any]:
    """Return a rank report, with those defaults added that tests read like any other value."""
    if "groups" not in body:
        return body
    found = {"inflight": [], "inflight_more": 0, "failed": [], **body}
    found["groups"] = [_COUNTS | group for group in body["groups"]]
    return found | {key: default | body[key] for key, default in _DEFAULTS.items() if key in body}


@dataclass
class Event:
    """``report``: empty if it is no rank report. ``request``: number of the request in which it came."""

    name: str
    report: dict[str, Any]
    resource: dict[str, Any]
    attributes: dict[str, Any]
    at: float
    request: int = 0


@dataclass
class Sink:
    """Everything that has arrived.

    Attributes:
        watchers: the first request of each control stream.
        updates: further requests.
        commands: each is sent on one stream; None ends it.
        has_queues: each stream takes commands from one of ``queues`` instead.
        mode: "ok", "slow" (answers after ``delay`` seconds, or in another mode), "refuse" (a final error), "busy" (an
            error after which to try again).
    """

    address: str = ""
    mode: str = "ok"
    delay: float = 0.0
    spans: list[Span] = field(default_factory=list)
    span_resources: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    watchers: list[WatchRequest] = field(default_factory=list)
    updates: list[WatchRequest] = field(default_factory=list)
    commands: queue.SimpleQueue[Command | None] = field(default_factory=queue.SimpleQueue)
    has_queues: bool = False
    queues: list[queue.SimpleQueue[Command | None]] = field(default_factory=list)
    requests: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, request: Any, headers: dict[str, str]) -> None:
        now = time.monotonic()
        with self._changed:
            self.requests += 1
            self.headers.append(headers)
            if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
                for of_resource in request.resource_spans:
                    self.span_resources.append(attributes(of_resource.resource.attributes))
                    for of_scope in of_resource.scope_spans:
                        assert of_scope.scope.name == "otel_fr"
                        self.spans.extend(of_scope.spans)
            else:
                for of_resource in request.resource_logs:
                    resource = attributes(of_resource.resource.attributes)
                    for of_scope in of_resource.scope_logs:
                        for record in of_scope.log_records:
                            is_report = record.event_name.startswith("torch.")
                            body = _report(json.loads(record.body.string_value)) if is_report else {}
                            found = attributes(record.attributes)
                            self.events.append(Event(record.event_name, body, resource, found, now, self.requests))
            self._changed.notify_all()

    def note(self) -> None:
        with self._changed:
            self.requests += 1
            self._changed.notify_all()

    def watched(self, request: WatchRequest) -> None:
        with self._changed:
            self.watchers.append(request)
            self._changed.notify_all()

    def updated(self, request: WatchRequest) -> None:
        with self._changed:
            self.updates.append(request)
            self._changed.notify_all()

    def wait(self, found: Callable[[], Any], timeout: float = PATIENCE, what: str = "") -> Any:
        """Return the result of ``found`` once it is true."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (result := found()):
                left = deadline - time.monotonic()
                if left <= 0:
                    seen = [(event.name, event.report.get("n")) for event in self.events]
                    raise AssertionError(f"not within {timeout} s: {what}; {len(self.spans)} spans, events {seen}")
                self._changed.wait(left)
            return result

    def named(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def events_named(self, name: str, count: int) -> list[Event]:
        """Return all events of that name, once there are ``count``."""
        self.wait(lambda: len(self.named(name)) >= count, what=f"{count} times {name}")
        return self.named(name)

    def event(
        self, name: str, timeout: float = PATIENCE, where: Callable[[dict[str, Any]], Any] = lambda _: True
    ) -> Event:
        """Return the first event of that name."""
        found = self.wait(lambda: [e for e in self.named(name) if where(e.report)], timeout, what=name)
        assert isinstance(found[0], Event)
        return found[0]


_Request = trace_service_pb2.ExportTraceServiceRequest | logs_service_pb2.ExportLogsServiceRequest


def _export(sink: Sink, service: str, request_type: type[_Request]) -> grpc.GenericRpcHandler[_Request, bytes]:
    """OTLP's Export for one signal. A full success is an empty response."""

    def export(request: _Request, context: grpc.ServicerContext) -> bytes:
        _take(sink, request, context)
        return b""

    handler = grpc.unary_unary_rpc_method_handler(export, request_deserializer=request_type.FromString)
    return grpc.method_handlers_generic_handler(service, {"Export": handler})


def _take(sink: Sink, request: _Request, context: grpc.ServicerContext) -> None:
    end = time.monotonic() + sink.delay
    while sink.mode == "slow" and time.monotonic() < end:
        time.sleep(0.02)
    if sink.mode in ("refuse", "busy"):
        sink.note()
        code = grpc.StatusCode.INVALID_ARGUMENT if sink.mode == "refuse" else grpc.StatusCode.UNAVAILABLE
        context.abort(code, "not now")
    sink.take(request, {key: str(value) for key, value in context.invocation_metadata()})


def _control(sink: Sink) -> grpc.GenericRpcHandler[WatchRequest, Command]:
    def watch(requests: Iterator[WatchRequest], context: grpc.ServicerContext) -> Iterator[Command]:
        commands = sink.commands if not sink.has_queues else queue.SimpleQueue()
        sink.queues.append(commands)
        sink.watched(next(requests))
        context.send_initial_metadata(())
        threading.Thread(target=follow, args=(requests,), daemon=True).start()
        while context.is_active():
            try:
                command = commands.get(timeout=0.1)
            except queue.Empty:
                continue
            if not context.is_active():
                commands.put(command)
            if command is None:
                return
            yield command

    def follow(requests: Iterator[WatchRequest]) -> None:
        with contextlib.suppress(Exception):  # grpc raises a bare one when the stream has ended
            for request in requests:
                sink.updated(request)

    handler = grpc.stream_stream_rpc_method_handler(
        watch, request_deserializer=WatchRequest.FromString, response_serializer=Command.SerializeToString
    )
    return grpc.method_handlers_generic_handler(WATCH.split("/")[1], {"Watch": handler})


@contextlib.contextmanager
def grpc_sink(
    tls: tuple[Path, Path] | None = None, port: int = 0, control: bool = False, delay: float = 0.0, mode: str = "ok"
) -> Iterator[Sink]:
    """Run a sink. ``tls``: key and certificate. ``control``: offer the control service, too."""
    sink = Sink(delay=delay, mode=mode)
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    traces = _export(sink, TRACES.split("/")[1], trace_service_pb2.ExportTraceServiceRequest)
    logs = _export(sink, LOGS.split("/")[1], logs_service_pb2.ExportLogsServiceRequest)
    server.add_generic_rpc_handlers((traces, logs))
    if control:
        server.add_generic_rpc_handlers((_control(sink),))
    if tls is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        sink.address = f"http://127.0.0.1:{port}"
    else:
        key, certificate = tls
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
        port = server.add_secure_port(f"127.0.0.1:{port}", credentials)
        sink.address = f"https://localhost:{port}"
    server.start()
    try:
        yield sink
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def http_sink(tls: tuple[Path, Path] | None = None) -> Iterator[Sink]:
    sink = Sink()

    class Takes(Handler):
        def do_POST(self) -> None:
            data = self.content()
            if self.headers.get("content-encoding") == "gzip":
                data = gzip.decompress(data)
            kind = {
                "/v1/traces": trace_service_pb2.ExportTraceServiceRequest,
                "/v1/logs": logs_service_pb2.ExportLogsServiceRequest,
            }.get(self.path)
            if kind is None:
                self.reply(404)
                return
            request = kind()
            request.ParseFromString(data)
            sink.take(request, {key.lower(): value for key, value in self.headers.items()})
            self.reply(200, headers={"Content-Type": "application/x-protobuf"})

    with http_server(Takes, tls) as server:
        scheme = "https://localhost" if tls else "http://127.0.0.1"
        sink.address = f"{scheme}:{server.server_port}"
        yield sink


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of localhost: (key, certificate)."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return key, certificate
