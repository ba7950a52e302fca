"""Servers to which the collector forwards OTLP requests. Each keeps what it has accepted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
from otel_fr_collector.forward.backends import BusyError

from tests.support.grpc_calls import TRACES
from tests.support.http_servers import Handler, http_server


@dataclass
class Backend:
    """A backend's answers, and the requests that it has accepted."""

    taken: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    tried: list[float] = field(default_factory=list)
    busy: int = 0
    """How many further requests the backend refuses as busy."""
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
        self.headers.append(headers)
        self.paths.append(path)
        self.taken.append(data)  # last: tests wait for it, and then read the others


@dataclass
class MemoryBackend(Backend):
    """A backend in the collector's process, without a port."""

    name: str = "memory"
    is_down: bool = False

    async def send(self, signal: str, data: bytes) -> None:
        if self.is_down or self.decide() == "busy":
            raise BusyError("later")
        self.keep(data, {}, signal)

    async def close(self) -> None:
        pass


@contextlib.contextmanager
def grpc_backend(
    address: str = "127.0.0.1:0",
    credentials: grpc.ServerCredentials | None = None,
    compression: grpc.Compression | None = None,
    answer: bytes = b"",
) -> Iterator[Backend]:
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
        return answer

    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)], compression=compression)
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

    class Takes(Handler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.content()
            outcome = backend.decide()
            later = None
            if outcome == "busy" and backend.retry_after is not None:
                later = {"Retry-After": f"{backend.retry_after:.0f}"}
            self.reply({"taken": 200, "busy": 503, "refused": 400}[outcome], headers=later)
            if outcome == "taken":
                backend.keep(data, {key.lower(): value for key, value in self.headers.items()}, self.path)

    with http_server(Takes) as server:
        backend.url = f"http://127.0.0.1:{server.server_port}/otlp"
        yield backend
