"""Messages about servers that did not respond, which operators understand."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from otel_fr_collector.network.http_client import HttpClient, HttpError

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE


@contextlib.contextmanager
def server(answer: bytes | None) -> Iterator[str]:
    """Run a server that answers one request with these bytes, and closes the connection. None: it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def problem(url: str, total: float = PATIENCE) -> str:
    client = HttpClient(connect=PATIENCE, total=total)
    with pytest.raises(HttpError) as found:
        client.request("POST", url, {}, b"{}")
    client.close()
    return str(found.value)


def test_a_server_that_is_away() -> None:
    assert problem(f"http://127.0.0.1:{free_port()}") == "Connection refused"
    assert problem("http://alertmanager.invalid") == "the host name has no address"


def test_a_server_that_does_not_answer() -> None:
    with server(None) as address:
        assert problem(f"http://{address}", total=0.2) == "the response timed out"


def test_a_server_that_speaks_something_else() -> None:
    with server(b"220 smtp.example ESMTP\r\n") as address:
        assert problem(f"http://{address}") == "the response is not HTTP"
    with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert problem(f"https://{address}").startswith("TLS: ")


def test_a_server_that_closes_the_connection() -> None:
    with server(b"") as address:
        assert problem(f"http://{address}") in ("the connection was closed", "Connection reset by peer")
