"""Servers that accept connections and then do not behave like HTTP servers."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import zlib
from collections.abc import Callable, Iterator

Behaviour = Callable[[socket.socket, threading.Event], None]
"""Handles a connection. The event is set when the server ends."""

STEP = 0.2
"""Seconds between two bytes of a server that drips."""


@contextlib.contextmanager
def hostile_server(behaviour: Behaviour) -> Iterator[str]:
    """Run a server on a free port, and yield its URL."""
    ended = threading.Event()
    connections: list[socket.socket] = []

    def handle(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            behaviour(connection, ended)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                connection.close()


def hangs(_: socket.socket, ended: threading.Event) -> None:
    """Reads nothing and answers nothing."""
    ended.wait()


def greets(connection: socket.socket, _: threading.Event) -> None:
    """Names another protocol, as an SSH server does, and closes the connection."""
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    connection.recv(1 << 16)


def drips(connection: socket.socket, ended: threading.Event) -> None:
    """Answers byte by byte, without end."""
    head = b"HTTP/1.1 200 OK\r\nX-Long: "
    for byte in itertools.chain(head, itertools.repeat(b"x"[0])):
        connection.sendall(bytes((byte,)))
        if ended.wait(STEP):
            return


def bomb(size: int, status: int = 200) -> Behaviour:
    """Return a behaviour that answers with compressed zeros: ``size`` bytes (whole MiB) after decompression."""
    packer, piece = zlib.compressobj(wbits=31), bytes(1 << 20)
    body = b"".join(packer.compress(piece) for _ in range(size >> 20)) + packer.flush()
    head = f"HTTP/1.1 {status} OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"

    def answer(connection: socket.socket, _: threading.Event) -> None:
        while connection.recv(1 << 16):
            connection.sendall(head.encode() + body)

    return answer


def floods(connection: socket.socket, _: threading.Event) -> None:
    """Answers with an endless body."""
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
