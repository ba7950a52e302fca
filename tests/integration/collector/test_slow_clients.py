"""Clients that send or read byte by byte, towards real servers in this process, whose times are shortened."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

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
from starlette.applications import Starlette
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
"""That one client may have."""


@contextlib.contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Of an HTTP server."""
    monkeypatch.setattr(http_server, "HEAD_SECONDS", TIME)
    monkeypatch.setattr(http_server, "READ_SECONDS", TIME)

    async def small(_: Request) -> Response:
        return Response(b"ok")

    async def large(_: Request) -> Response:
        return Response(bytes(LARGE))

    app = Starlette(routes=[Route("/", small, methods=["GET", "POST"]), Route("/large", large)])
    listener = socket.create_server(("127.0.0.1", 0))

    async def call(work: Callable[[], Awaitable[None] | None]) -> None:
        done = work()
        if done is not None:
            await done

    with loop_in_a_thread() as loop:
        server = asyncio.run_coroutine_threadsafe(_made(app, listener), loop).result()
        asyncio.run_coroutine_threadsafe(call(server.start), loop).result()
        yield listener.getsockname()[1]
        asyncio.run_coroutine_threadsafe(server.stop(PATIENCE), loop).result()


async def _made(app: Starlette, listener: socket.socket) -> HttpServer:
    return HttpServer(app, listener, client_connections=CONNECTIONS)


HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
ENDLESS = b"X-Endless: " + b"x" * 100_000


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def answered(client: socket.socket, count: int = 1) -> None:
    """Read so many responses."""
    data = b""
    while data.count(b"HTTP/1.1 200") < count or not data.endswith(b"ok"):
        data += client.recv(65_536)


def is_closed_while_it_sends(client: socket.socket, data: bytes) -> bool:
    """Whether the server closes the connection before all of the data was sent, byte by byte."""
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
def test_the_head_of_every_request_has_to_arrive_in_time(port: int, requests_before: int) -> None:
    with connect(port) as client:
        for _ in range(requests_before):
            client.sendall(HEAD + b"\r\n")
            answered(client)
        assert is_closed_while_it_sends(client, HEAD + ENDLESS)


def test_a_body_that_nobody_reads_has_to_arrive_in_time(port: int) -> None:
    with connect(port) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        answered(client)
        assert is_closed_while_it_sends(client, bytes(1_000))


def test_requests_that_arrive_in_time_are_served_for_as_long_as_they_come(port: int) -> None:
    """Also in two parts, and several at once."""
    begun = time.monotonic()
    with connect(port) as client:
        while time.monotonic() < begun + 4 * TIME:
            client.sendall(HEAD)
            time.sleep(TRICKLE)
            client.sendall(b"\r\n")
            answered(client)
            client.sendall(2 * (HEAD + b"\r\n"))
            answered(client, 2)


def test_a_client_that_reads_nothing_is_disconnected_and_a_slow_one_is_not(port: int) -> None:
    with connect(port) as deaf, connect(port) as slow:
        for client in (deaf, slow):
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        read = 0
        begun = time.monotonic()
        while time.monotonic() < begun + 6 * TIME:
            read += len(slow.recv(65_536))
            time.sleep(TRICKLE / 10)
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
