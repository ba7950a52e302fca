"""Connections of urllib3 whose responses are bounded in time and size, even if a server sends one byte a second."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

MAX_BODY = 64 * 1024
"""Bytes read of a response's body. OTLP servers and receivers answer with less than 1 kB, except for errors' texts."""


class _Current(threading.local):
    """The request of this thread. ``deadline``: monotonic time at which its response must be complete."""

    deadline = float("inf")


_current = _Current()


def set_deadline(seconds: float) -> None:
    """Require a complete response to this thread's next request over `POOL_CLASSES` within ``seconds``."""
    _current.deadline = time.monotonic() + seconds


def bounded_body(response: urllib3.BaseHTTPResponse) -> bytes:
    """Return at most `MAX_BODY` bytes of the body, not decompressed. If it is longer, close the connection.

    Args:
        response: must be unread.
    """
    body = response.read(MAX_BODY, decode_content=False)
    if response.read(1, decode_content=False):
        response.close()
    return body


class _TimedReader(io.RawIOBase):
    """Reads from a socket until a deadline. The socket's own timeout would restart with each byte."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)  # keeps the socket open: http.client relies on it
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline < float("inf"):
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the response took too long")
            self._sock.settimeout(left)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self.fp.close()
        self.fp: Any = io.BufferedReader(_TimedReader(sock, _current.deadline))


class _HttpConnection(HTTPConnection):
    response_class = _TimedResponse


class _HttpsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a server that listens on a Unix socket."""

    response_class = _TimedResponse

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask_unix(path: str, method: str, target: str, *, seconds: float, most: int) -> bytes:
    """Send a request without a body on a new connection, and return the response's body.

    Args:
        path: path of the Unix socket.
        target: path and query of the request.
        seconds: time until the response must be complete.
        most: most bytes of its body.

    Raises:
        OSError: no server listens, the answer is late or longer than ``most``, or it is an error.
    """
    set_deadline(seconds)
    connection = _UnixConnection(path, seconds)
    try:
        connection.request(method, target, headers={"Connection": "close", "Content-Length": "0"})
        response = connection.getresponse()
        body = response.read(most + 1)
        if response.status != http.client.OK:
            raise OSError(f"{target}: HTTP status {response.status}")
        if len(body) > most:
            raise OSError(f"{target}: more than {most} bytes")
        return body
    except http.client.HTTPException as error:
        raise OSError(f"{target}: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
        _current.deadline = float("inf")


POOL_CLASSES: dict[str, type[urllib3.HTTPConnectionPool]] = {"http": _HttpPool, "https": _HttpsPool}
"""For ``urllib3.PoolManager.pool_classes_by_scheme``."""
