"""Readers that take long over the answers of the API: the bytes that wait for them are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
from otel_fr_collector.network.http_server import HttpServer
from otel_fr_collector.web.answers import MAX_OF_CLIENT, PIECE, Answers, BoundedAnswers
from otel_fr_collector.web.app import AccessCheck
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.integration.collector.test_slow_clients import loop_in_a_thread
from tests.support.waiting import PATIENCE, wait_for

LARGE = 2 << 20
"""Bytes of an answer."""


async def large(request: Request) -> Response:
    return Response(request.path_params["number"].encode().ljust(LARGE))


@pytest.fixture
def served() -> Iterator[tuple[int, Answers]]:
    """The port of a server whose answers are bounded, and these."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)  # else the kernel takes whole answers
    answers = Answers()
    middleware = [Middleware(AccessCheck, tokens=None), Middleware(BoundedAnswers, answers=answers)]
    app = Starlette(routes=[Route("/{number}", large)], middleware=middleware)
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
    count = 3 * MAX_OF_CLIENT // LARGE
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
        assert len(whole) > LARGE
    assert wait_for(lambda: answers.size == 0)


def test_equal_answers_count_once(served: tuple[int, Answers]) -> None:
    port, answers = served
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ask(port, 7)) for _ in range(2 * MAX_OF_CLIENT // LARGE)]
        assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}
        assert answers.size == LARGE + len(clients) * PIECE
        for client in clients:
            assert len(read(client)) > LARGE
    assert wait_for(lambda: answers.size == 0)
