"""A real HTTP server, and clients that send request after request, or bytes that are no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from otel_fr_collector.network.http_server import MAX_PIPELINED, HttpServer
from otel_fr_collector.network.tls import ServerTls
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.support.certificates import Certificates
from tests.support.waiting import PATIENCE

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"%s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SENDING = 100
"""Clients that send requests without waiting for answers."""
REQUESTS = 200
"""Requests of each client."""


LARGE = 2 << 20
"""Bytes of an answer."""


class Served:
    """A server in a thread. It counts the requests to ``/``, and notes the count at the request for ``/last``."""

    def __init__(self, certificates: Certificates | None = None) -> None:
        self.certificates = certificates
        self.count, self.before_last = 0, -1
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=2 * SENDING)
        self.address = self.listener.getsockname()
        self.loop = asyncio.new_event_loop()
        with contextlib.suppress(ImportError):
            self.loop = importlib.import_module("uvloop").new_event_loop()
        paths = {
            "/": self._count,
            "/last": self._last,
            "/read": self._read,
            "/begun": self._begun,
            "/large": self._large,
        }
        self.app = Starlette(routes=[Route(path, one, methods=["GET", "POST"]) for path, one in paths.items()])

    async def _count(self, _: Request) -> Response:
        self.count += 1

        async def parts() -> AsyncIterator[bytes]:
            yield b"ok"

        # The response checks if the client is still there, so uvicorn reads more from the connection.
        return StreamingResponse(parts(), headers={"Content-Length": "2"})

    async def _last(self, _: Request) -> Response:
        self.before_last = self.count
        return Response(b"ok")

    async def _large(self, _: Request) -> Response:
        return Response(bytes(LARGE - 2) + b"ok")

    async def _read(self, request: Request) -> Response:
        with contextlib.suppress(ClientDisconnect):
            return Response(await request.body())
        return Response(b"it has gone")

    async def _begun(self, _: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun"
            await asyncio.sleep(PATIENCE)

        return StreamingResponse(parts())

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()
        own = self.certificates
        tls = None if own is None else ServerTls(own.cert, own.key)
        server = HttpServer(self.app, self.listener, tls)
        self.loop.call_soon_threadsafe(server.start)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(PATIENCE), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            thread.join()
            self.loop.close()

    def connect(self) -> socket.socket:
        client = socket.create_connection(self.address, timeout=PATIENCE)
        if self.certificates is None:
            return client
        return self.certificates.context().wrap_socket(client, server_hostname="127.0.0.1")


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    with found.running():
        yield found


def read(client: socket.socket, end: bytes) -> bytes:
    """Read until an answer ends with ``end``, or the connection ends."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while not data.endswith(end) and (more := client.recv(65_536)):
            data += more
    return data


def test_a_new_client_gets_its_turn_among_many_that_send_all_the_time() -> None:
    """All clients connect before the server accepts the first."""
    served = Served()
    with contextlib.ExitStack() as stack:
        for _ in range(SENDING):
            stack.enter_context(served.connect()).sendall(GET % b"" * REQUESTS)
        last = stack.enter_context(served.connect())
        last.sendall(GET % b"last")
        stack.enter_context(served.running())
        assert read(last, b"ok")
        assert 0 <= served.before_last < SENDING * REQUESTS / 20


def test_requests_that_wait_for_their_turn_are_all_answered_also_over_tls(tmp_path: Path) -> None:
    served = Served(Certificates(tmp_path))
    with served.running(), served.connect() as client:
        client.sendall(3 * (GET % b"" + GET % b"large"))
        data = b""
        while len(data) < 3 * LARGE or not data.endswith(b"ok"):
            data += client.recv(65_536)
        assert data.count(b"HTTP/1.1 200") == 6
    assert served.count == 3


def test_requests_that_wait_for_their_turn_are_all_answered(served: Served) -> None:
    count = MAX_PIPELINED // 2 // len(GET)
    with served.connect() as client:
        client.sendall(GET % b"" * count + GET % b"last")
        data = b""
        while data.count(b"\r\nok") <= count:
            data += client.recv(65_536)
    assert (served.count, served.before_last) == (count, count)


def test_what_waits_of_one_connection_is_bounded(served: Served) -> None:
    sent = 0
    with served.connect() as client, contextlib.suppress(ConnectionError):
        client.setblocking(False)
        requests = GET % b"" * 10_000
        while sent < 64 << 20:
            with contextlib.suppress(BlockingIOError):
                sent += client.send(requests)
            with contextlib.suppress(BlockingIOError):
                assert client.recv(1_000), "the server has closed the connection"
    assert sent < 64 << 20
    with served.connect() as other:
        other.sendall(GET % b"last")
        assert read(other, b"ok")


@pytest.mark.parametrize("begin", [b"POST /read", b"POST /", b"GET /begun", b"POST /nothing"])
@pytest.mark.parametrize("chunk", [b"zz\r\n", b"5\r\nabcdeXX\r\n", b"0\r\nno header\r\n\r\n", b"f" * 30 + b"\r\n"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_malformed_chunk_ends_its_connection_and_is_not_logged(
    served: Served, caplog: pytest.LogCaptureFixture, begin: bytes, chunk: bytes, is_whole: bool
) -> None:
    with served.connect() as client:
        if is_whole:
            client.sendall(CHUNKED % begin + chunk)
        else:
            client.sendall(CHUNKED % begin)
            if begin == b"GET /begun":
                assert read(client, b"begun\r\n")
            client.sendall(chunk)
        with contextlib.suppress(ConnectionError):
            while client.recv(65_536):
                pass
    with served.connect() as other:
        other.sendall(GET % b"last")
        assert read(other, b"ok")
    assert not [record for record in caplog.records if record.name != "asyncio" or record.levelname != "DEBUG"]
