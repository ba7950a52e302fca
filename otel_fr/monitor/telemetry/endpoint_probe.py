"""Which server answers at an OTLP endpoint that accepts nothing: it tells the user which usual mistake this is.

OpenTelemetry's exporters only say that a request failed. The first bytes that a server sends say which protocol it
speaks: an HTTP/2 server, as of gRPC, begins with a SETTINGS frame (RFC 9113, 3.4), a TLS server answers plain text with
an alert (RFC 8446, 6).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping

from otel_fr.config import endpoint_address
from otel_fr.otlp_sender import Signal, endpoint_mistake, endpoint_of, protocol_of

SIGNALS: tuple[Signal, ...] = ("traces", "logs")
MINUTE = 60.0
SECONDS = 2.0
"""To connect, and again for all of the answer: a server may send a byte a second."""
MAX_ANSWER = 8_192
_REQUEST = "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept: text/html\r\n\r\n"
_PAGE = b"otel-fr"
"""In the collector's page, which other servers do not have at ``/``."""
_SETTINGS, _ALERT = 0x04, 0x15


class EndpointTrouble:
    """What one monitor says of an endpoint that takes nothing: a mistake once for the job, anything else once a minute
    for each machine.

    Args:
        is_first: True for the first monitor of this machine that asks this.
        is_first_node: False: a monitor of another machine names the mistake, which all of them have made.
    """

    def __init__(self, is_first: Callable[[str], bool], *, is_first_node: bool) -> None:
        self._is_first, self._is_first_node = is_first, is_first_node
        self._mistake: str | None = None

    def explain(self) -> str | None:
        """What to say in place of an exporter's own message; "": that message; None: nothing. May block for seconds."""
        if not self._is_first(f"endpoint {int(time.time() / MINUTE)}"):
            return None
        if not self._mistake:
            found = (likely_mistake(signal, os.environ) for signal in SIGNALS)
            self._mistake = next((text for text in found if text), "")
        if not self._mistake:
            return ""
        return self._mistake if self._is_first_node and self._is_first(self._mistake) else None


def likely_mistake(signal: Signal, env: Mapping[str, str]) -> str:
    """What is wrong with the endpoint of a signal and what to write instead, as one line; "" if nothing shows.

    Blocks for a few seconds at most.
    """
    name, url = endpoint_of(signal, env)
    if not url:
        return ""
    if text := endpoint_mistake(signal, env):
        return text
    is_grpc = protocol_of(signal, env) == "grpc"
    try:
        host, port = endpoint_address(url)
        answer = b"" if url.startswith("https:") else _first_answer(host, port)
    except (OSError, ValueError):
        return ""
    written, right = f"{name}={url}", f"http://{host}:{4317 if is_grpc else 4318}"
    if answer.startswith(b"HTTP/1.") and b" 200 " in answer[:16] and _PAGE in answer:
        return f"{written} is the collector's page, not its OTLP port: write {right}"
    if answer.startswith(b"HTTP/1.") and is_grpc:
        return f"{written} speaks HTTP, not gRPC: write {right}, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
    if answer[3:4] == bytes([_SETTINGS]) and not is_grpc:
        return f"{written} speaks gRPC, not HTTP: write {right}, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
    if answer[:1] == bytes([_ALERT]):
        return f"{written} speaks TLS: write https://{host}:{port}"
    return ""


def _first_answer(host: str, port: int) -> bytes:
    """The beginning of what a server answers to a request of HTTP/1.1."""
    with socket.create_connection((host, port), SECONDS) as connection:
        connection.sendall(_REQUEST.format(host).encode("ascii", "replace"))
        answer, deadline = b"", time.monotonic() + SECONDS
        with contextlib.suppress(OSError):
            while len(answer) < MAX_ANSWER and (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                data = connection.recv(MAX_ANSWER)
                if not data:
                    break
                answer += data
        return answer
