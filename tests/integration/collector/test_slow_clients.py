"""Clients that send or read byte by byte, and real servers in this process, which limit their times and bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network import http_server
from otel_fr_collector.network.http_server import HttpServer
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.receive import grpc_server
from otel_fr_collector.receive.grpc_server import make_grpc_server
from otel_fr_collector.receive.intake import Intake
from otel_fr_collector.service import Service
from otel_fr_collector.web.answers import MAX_OF_CLIENT, PIECE, Answers, BoundedAnswers
from otel_fr_collector.web.app import AccessCheck
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.grpc_calls import WATCH
from tests.support.waiting import PATIENCE, wait_for

TIME = 0.5
"""Seconds that the servers here give a client."""
TRICKLE = TIME / 10
"""Seconds between two bytes of a slow client."""
LARGE = 64 << 20
CONNECTIONS = 20
"""Most connections of one client."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop with a clock that tests can advance, so that they need not wait for long time limits.

    Attributes:
        ahead: seconds by which the clock is ahead.
    """

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def skip(self, seconds: float) -> None:
        """Advance the clock, and return when all work that is due is done."""

        async def look() -> None:
            self.ahead += seconds
            for _ in range(2):  # a timer runs one turn after the loop finds it due
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(look(), self).result(PATIENCE)


@contextlib.contextmanager
def loop_in_a_thread() -> Iterator[Loop]:
    loop = Loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    with loop_in_a_thread() as found:
        yield found


@pytest.fixture
def port(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of an HTTP server."""
    monkeypatch.setattr(http_server, "HEAD_SECONDS", TIME)
    monkeypatch.setattr(http_server, "READ_SECONDS", TIME)

    async def small(_: Request) -> Response:
        return Response(b"ok")

    async def large(_: Request) -> Response:
        return Response(bytes(LARGE))

    app = Starlette(routes=[Route("/", small, methods=["GET", "POST"]), Route("/large", large)])
    listener = socket.create_server(("127.0.0.1", 0))

    async def started() -> HttpServer:
        server = HttpServer(app, listener, client_connections=CONNECTIONS)
        server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(started(), loop).result()
    yield listener.getsockname()[1]
    asyncio.run_coroutine_threadsafe(server.stop(PATIENCE), loop).result()


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
ENDLESS = b"X-Endless: " + b"x" * 100_000


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def answered(client: socket.socket, count: int = 1) -> None:
    """Read so many responses."""
    data = b""
    while data.count(b"HTTP/1.1 200") < count or not data.endswith(b"ok"):
        more = client.recv(65_536)
        assert more, "the server has closed the connection"
        data += more


def is_closed_while_it_sends(client: socket.socket, data: bytes) -> bool:
    """Send data byte by byte. Return True if the server closes the connection before the end."""
    client.settimeout(TRICKLE)
    for byte in data:
        try:
            client.sendall(bytes([byte]))
            if not client.recv(1):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def test_connections_of_one_client_are_bounded(port: int) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(port)) for _ in range(CONNECTIONS)]
        for client in held:
            client.sendall(HEAD)  # so that the server has accepted it
        with connect(port) as further:
            assert is_closed_while_it_sends(further, HEAD)
        held.pop().close()

        def is_accepted() -> bool:
            with connect(port) as client, contextlib.suppress(OSError):
                client.sendall(HEAD + b"\r\n")
                return bool(client.recv(1))
            return False

        assert wait_for(is_accepted)


@pytest.mark.parametrize("requests_before", [0, 1, 3])
def test_the_head_of_every_request_has_to_arrive_in_time(
    port: int, requests_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if requests_before:
        monkeypatch.setattr(http_server, "HEAD_SECONDS", PATIENCE)  # a busy machine may delay this client
    with connect(port) as client:
        for left in reversed(range(requests_before)):
            if not left:
                monkeypatch.setattr(http_server, "HEAD_SECONDS", TIME)  # counts from the last answer
            client.sendall(HEAD + b"\r\n")
            answered(client)
        assert is_closed_while_it_sends(client, HEAD + ENDLESS)


def test_a_body_that_nobody_reads_has_to_arrive_in_time(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        answered(client)
        assert is_closed_while_it_sends(client, bytes(1_000))


def test_requests_that_arrive_in_time_are_served_for_as_long_as_they_come(
    loop: Loop, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests may arrive in two parts, or several at once."""
    monkeypatch.setattr(http_server, "HEAD_SECONDS", PATIENCE)
    with connect(port) as client:
        for _ in range(20):
            client.sendall(HEAD)
            loop.skip(PATIENCE / 5)
            client.sendall(b"\r\n")
            answered(client)
            client.sendall(2 * (HEAD + b"\r\n"))
            answered(client, 2)


def test_a_client_that_reads_nothing_is_disconnected_and_a_slow_one_is_not(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = 6 * TIME  # a busy machine may delay the slow client
    monkeypatch.setattr(http_server, "READ_SECONDS", patience)
    with connect(port) as deaf, connect(port) as slow:
        for client in (deaf, slow):
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        read = 0
        begun = time.monotonic()
        while time.monotonic() < begun + 2.5 * patience:
            read += len(slow.recv(65_536))
            time.sleep(TRICKLE / 5)
        while data := slow.recv(1 << 20):
            read += len(data)
            if read > LARGE:
                break
        assert read > LARGE
        with contextlib.suppress(ConnectionError):
            left = 0
            while data := deaf.recv(1 << 20):
                left += len(data)
            assert left < LARGE


def test_a_control_stream_without_a_request_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "READ_SECONDS", TIME)

    async def started() -> tuple[grpc.aio.Server, int]:
        service = Service(metrics := Metrics(), Outlets(metrics))
        server = make_grpc_server(service.control, service.attribution, Intake(service))
        number = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, number

    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(PATIENCE)
        yield from ()

    with loop_in_a_thread() as loop:
        server, number = asyncio.run_coroutine_threadsafe(started(), loop).result()
        with grpc.insecure_channel(f"127.0.0.1:{number}") as channel:
            answers = channel.stream_stream(WATCH, None, None)(nothing(), timeout=PATIENCE)
            with pytest.raises(grpc.RpcError) as caught:
                list(answers)
            over.set()
            assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert "did not arrive" in str(caught.value.details())
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result()


ANSWER = 2 << 20
"""Bytes of an answer."""


async def padded(request: Request) -> Response:
    return Response(request.path_params["number"].encode().ljust(ANSWER))


@pytest.fixture
def served() -> Iterator[tuple[int, Answers]]:
    """The port of a server with bounded answers, and the answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)  # otherwise the kernel takes complete answers
    answers = Answers()
    middleware = [Middleware(AccessCheck, tokens=None), Middleware(BoundedAnswers, answers=answers)]
    app = Starlette(routes=[Route("/{number}", padded)], middleware=middleware)
    with loop_in_a_thread() as loop:
        server = HttpServer(app, listener)
        loop.call_soon_threadsafe(server.start)
        yield listener.getsockname()[1], answers
        asyncio.run_coroutine_threadsafe(server.stop(PATIENCE), loop).result()


def ask(port: int, number: int, address: str = "127.0.0.1") -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(PATIENCE)
    client.bind((address, 0))
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % number)
    return client


def read(client: socket.socket) -> bytes:
    data = b""
    while more := client.recv(1 << 20):
        data += more
    return data


def test_what_waits_for_a_client_is_bounded_and_others_are_served(served: tuple[int, Answers]) -> None:
    port, answers = served
    count = 3 * MAX_OF_CLIENT // ANSWER
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ask(port, number)) for number in range(count)]
        statuses = [client.recv(12) for client in clients]
        assert {b"HTTP/1.1 200", b"HTTP/1.1 503"} == set(statuses)
        assert MAX_OF_CLIENT / 2 < answers.size <= MAX_OF_CLIENT
        refused = read(clients[statuses.index(b"HTTP/1.1 503")])
        assert b"retry-after: " in refused
        assert b"too many answers are in flight" in refused
        with ask(port, 0, "127.0.0.2") as other:
            assert read(other).startswith(b"HTTP/1.1 200")
        whole = read(clients[statuses.index(b"HTTP/1.1 200")])
        assert len(whole) > ANSWER
    assert wait_for(lambda: answers.size == 0)


def test_equal_answers_count_once(served: tuple[int, Answers]) -> None:
    port, answers = served
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ask(port, 7)) for _ in range(2 * MAX_OF_CLIENT // ANSWER)]
        assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}
        assert answers.size == ANSWER + len(clients) * PIECE
        for client in clients:
            assert len(read(client)) > ANSWER
    assert wait_for(lambda: answers.size == 0)
