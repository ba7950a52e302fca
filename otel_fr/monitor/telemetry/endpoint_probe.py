"""Finds out which server answers at an OTLP endpoint that accepts nothing, to name the usual mistakes to the user.

OpenTelemetry's exporters only say that a request failed. The first bytes that a server sends show its protocol: an
HTTP/2 server, such as gRPC's, begins with a SETTINGS frame (RFC 9113, 3.4), and a TLS server answers plain text with an
alert (RFC 8446, 6).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from otel_fr.otlp_sender import Signal, endpoint_address, endpoint_mistake, endpoint_of, protocol_of
from otel_fr.redaction import hide_password

SIGNALS: tuple[Signal, ...] = ("traces", "logs")
MINUTE = 60.0
SECONDS = 2.0
"""Longest time to connect, and again for the complete answer: a server may send a byte a second."""
MAX_ANSWER = 8_192
MAX_QUOTED = 40
_CHECK = "check the address with otel-fr doctor"
_AUTHORIZE = "the token goes into OTEL_EXPORTER_OTLP_HEADERS"
_NO_TOKEN = re.compile(r"StatusCode\.(?:UNAUTHENTICATED|PERMISSION_DENIED), error details: (.*)")
"""Matches an exporter's message about a missing or wrong token."""
_REQUEST = "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAccept: text/html\r\n\r\n"
_PAGE = b"otel-fr"
"""Part of the collector's page. Other servers do not have it at ``/``."""
_SETTINGS, _ALERT = 0x04, 0x15


class Found(NamedTuple):
    """What is wrong with an endpoint: a ``mistake`` in its address, with the correction, or an ``outage``; "": none."""

    mistake: str = ""
    outage: str = ""


class EndpointTrouble:
    """Explains why an endpoint accepts nothing: a mistake once for the job, anything else once a minute for each
    machine.

    Args:
        is_first: `otel_fr.monitor.control.node.Node.is_first`.
        is_first_node: False if a monitor of another machine names the mistake, which is the same on all machines.
    """

    def __init__(self, is_first: Callable[[str, float], bool], *, is_first_node: bool) -> None:
        self._is_first, self._is_first_node = is_first, is_first_node
        self._mistake = ""

    def explain(self, message: str) -> str:
        """Return the text to log instead of an exporter's own message; "": log nothing. May block for seconds."""
        if not self._is_first("endpoint", MINUTE):
            return ""
        if not self._mistake:
            found = [_probe(signal, os.environ) for signal in {endpoint_of(one): one for one in SIGNALS}.values()]
            self._mistake = next((one.mistake for one in found if one.mistake), "")
            outage = next((one.outage for one in found if one.outage), message)
            if not self._mistake:
                check = _CHECK
                if refused := _NO_TOKEN.search(outage):
                    outage, check = f"telemetry is refused: {refused[1]}", _AUTHORIZE
                return hide_password(f"{outage}; the job continues without telemetry; {check}")
        is_news = self._is_first_node and self._is_first(self._mistake, 0.0)
        return hide_password(f"{self._mistake}; {_CHECK}") if is_news else ""


def likely_mistake(signal: Signal, env: Mapping[str, str]) -> str:
    """Return what is wrong with a signal's endpoint, and the correction, as one line; "" if no mistake is found.

    Blocks for at most a few seconds.
    """
    return _probe(signal, env).mistake


def reason_of(error: OSError | ValueError) -> str:
    """Return why no connection was made, such as ``"Connection refused"`` or ``"timed out"``."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _probe(signal: Signal, env: Mapping[str, str]) -> Found:
    name, url = endpoint_of(signal, env)
    if not url:
        return Found()
    if text := endpoint_mistake(signal, env):
        return Found(text)
    written = f"{name}={url}"
    try:
        host, port = endpoint_address(url)
        answer = _first_answer(host, port, is_silent=url.startswith("https:"))
    except (OSError, ValueError) as error:
        return Found(outage=f"{written} cannot be reached: {reason_of(error)}")
    return Found(_mistake_in(written, host, port, answer, is_grpc=protocol_of(signal, env) == "grpc"))


def _mistake_in(written: str, host: str, port: int, answer: bytes, *, is_grpc: bool) -> str:
    """Return the mistake in an address that the first bytes of the server's answer show, or ""."""
    right = f"http://{host}:{4317 if is_grpc else 4318}"
    if answer.startswith(b"HTTP/1.") and b" 200 " in answer[:16] and _PAGE in answer:
        return f"{written} is the collector's page, not its OTLP port: write {right}"
    if answer.startswith(b"HTTP/1."):
        instead = f"write {right}, or set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"
        return f"{written} speaks HTTP, not gRPC: {instead}" if is_grpc else ""
    if answer[3:4] == bytes([_SETTINGS]):
        instead = f"write {right}, or set OTEL_EXPORTER_OTLP_PROTOCOL=grpc"
        return "" if is_grpc else f"{written} speaks gRPC, not HTTP: {instead}"
    if answer[:1] == bytes([_ALERT]):
        return f"{written} speaks TLS: write https://{host}:{port}"
    if answer:
        begin = answer[:MAX_QUOTED].decode("ascii", "replace").strip()
        return f"{written} is no OTLP server (its answer begins with {begin!r}): write the collector's OTLP address"
    return ""


def _first_answer(host: str, port: int, *, is_silent: bool) -> bytes:
    """Return the beginning of a server's answer to an HTTP/1.1 request. ``is_silent``: connect, but send nothing."""
    with socket.create_connection((host, port), SECONDS) as connection:
        if is_silent:
            return b""
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
