"""OTLP backends: sends one request and interprets the response, over gRPC, or over HTTP with protobuf."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import grpc
import grpc.aio

from otel_fr_collector.given_files import read_bytes, read_text
from otel_fr_collector.network.address import port_of
from otel_fr_collector.network.http_client import HttpClient, HttpError, Workers, bounded_delay
from otel_fr_collector.otlp import status as otlp_status
from otel_fr_collector.otlp.signals import METHODS

TIMEOUT = 10.0
"""Seconds for one attempt."""
CONNECT_SECONDS = 5.0
PARALLEL = 8
"""Requests that are sent to one backend at the same time."""

RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""The codes OTLP calls retryable (opentelemetry-proto, docs/specification.md, OTLP/gRPC response).
RESOURCE_EXHAUSTED is also retryable if the response says when to retry."""
RETRYABLE_HTTP = frozenset({429, 502, 503, 504})
"""The statuses OTLP calls retryable (the same page, OTLP/HTTP response)."""


class RefusedError(Exception):
    """The backend will never accept this request."""


class BusyError(Exception):
    """The backend cannot accept the request now, or cannot be reached.

    Attributes:
        after: seconds after which the backend asks for a retry, at most
            `otel_fr_collector.network.http_client.MAX_RETRY_AFTER`. None: it does not ask.
        reached: there was a connection, so the request itself may be the reason.
    """

    def __init__(self, text: str, after: float | None = None, *, reached: bool = True) -> None:
        super().__init__(text)
        self.after = after
        self.reached = reached


class Backend(Protocol):
    """A server to which requests are forwarded."""

    name: str
    """The backend's URL, which has no secrets: the label in metrics and logs."""

    async def send(self, signal: str, data: bytes) -> None:
        """Send one request.

        Raises:
            RefusedError, BusyError: the backend has not accepted it.
        """

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Target:
    """A parsed backend URL. ``address``: ``host:port`` for gRPC, a base URL without ``/v1/...`` for HTTP."""

    is_grpc: bool
    is_secure: bool
    address: str


@dataclass(frozen=True)
class Tls:
    """PEM files for TLS to backends. None: the system's CAs, and no client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises OSError if a file cannot be read."""
        ca, cert, key = (read_bytes(path) if path is not None else None for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)

    def context(self) -> ssl.SSLContext:
        """Raises OSError (ssl.SSLError is one) if a file cannot be used."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None:
            context.load_cert_chain(self.cert, self.key)
        return context


def parse_backend(url: str) -> Target:
    """Parse the URL of a backend.

    ``grpc://`` and ``grpcs://`` are gRPC. ``http://`` and ``https://`` are HTTP if there is a path or the port is 4318
    (which OTLP reserves for HTTP). Otherwise they are gRPC, because OTLP exporters write gRPC endpoints like this.

    Raises:
        ValueError: the URL has another form.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
        raise ValueError("it is not the URL of an OTLP backend such as grpc://HOST:4317 or http://HOST:4318")
    if parts.username is not None:
        raise ValueError("a backend URL must not contain a password; put the header into --forward-headers")
    if parts.query:
        raise ValueError("a backend URL must not have a query; put the token into --forward-headers")
    port = port_of(url)
    secure = parts.scheme in ("https", "grpcs")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    if parts.scheme.startswith("http") and (path or port == 4318):
        for signal in METHODS:
            path = path.removesuffix(f"/v1/{signal}")
        authority = f"{host}:{port}" if port else host
        return Target(False, secure, f"{parts.scheme}://{authority}{path}")
    if path:
        raise ValueError(f"{url!r}: the URL of a gRPC backend must not have a path")
    return Target(True, secure, f"{host}:{port or 4317}")


def read_headers(path: Path, urls: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Read the headers file. It has lines ``URL NAME: VALUE``, and comment lines that begin with ``#``.

    Returns:
        The headers by URL, with names in lower case.

    Raises:
        ValueError: a line cannot be parsed, or names none of ``urls``. The message does not show the value.
        OSError: the file cannot be read.
    """
    found: dict[str, dict[str, str]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        url, _, rest = line.strip().partition(" ")
        name, colon, value = rest.partition(":")
        if not colon or not name.strip().isascii() or " " in name.strip():
            raise ValueError(f"line {number} of {path} is not URL NAME: VALUE")
        if url not in urls:
            raise ValueError(f"line {number} of {path} is for {url}, which is not a --forward URL")
        found.setdefault(url, {})[name.strip().lower()] = value.strip()
    return found


def make_backend(url: str, tls: Tls, headers: Mapping[str, str]) -> Backend:
    """Make a backend for a URL (`parse_backend`). Needs a running event loop.

    Raises:
        ValueError, OSError: the URL, or a file of ``tls``, cannot be used.
    """
    target = parse_backend(url)
    if target.is_grpc:
        return GrpcBackend(url, target, tls, headers)
    return HttpBackend(url, target, tls, headers)


class GrpcBackend:
    """See `Backend`."""

    def __init__(self, name: str, target: Target, tls: Tls, headers: Mapping[str, str]) -> None:
        self.name = name
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", 4 * 1024 * 1024),
            ("grpc.per_message_decompression", 0),  # only the status of a response is used
            ("grpc.initial_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 5_000),  # the forwarder has its own backoff
            ("grpc.keepalive_time_ms", 300_000),
        ]
        self._metadata = tuple(headers.items())
        if target.is_secure:
            self._channel = grpc.aio.secure_channel(target.address, tls.credentials(), options=options)
        else:
            self._channel = grpc.aio.insecure_channel(target.address, options=options)

    async def send(self, signal: str, data: bytes) -> None:
        call = self._channel.unary_unary(METHODS[signal], request_serializer=None, response_deserializer=None)
        try:
            await call(data, timeout=TIMEOUT, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            asked = otlp_status.read_retry_delay(list(error.trailing_metadata() or ()))
            after = None if asked is None else bounded_delay(asked)
            text = f"{error.code().name}: {error.details()}"
            if error.code() in RETRYABLE or (error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and after is not None):
                reached = self._channel.get_state() is grpc.ChannelConnectivity.READY
                raise BusyError(text, after, reached=reached) from None
            raise RefusedError(text) from None

    async def close(self) -> None:
        await self._channel.close(None)


class HttpBackend:
    """See `Backend`. Sends in threads, so that it does not block the event loop."""

    def __init__(self, name: str, target: Target, tls: Tls, headers: Mapping[str, str]) -> None:
        self.name = name
        self._base = target.address
        context = tls.context() if target.is_secure else None
        self._http = HttpClient(connect=CONNECT_SECONDS, total=TIMEOUT, connections=PARALLEL, tls=context)
        self._headers = {**headers, "content-type": "application/x-protobuf", "user-agent": "otel-fr-collector"}
        self._workers = Workers(PARALLEL, "otel-fr forward")

    async def send(self, signal: str, data: bytes) -> None:
        url = f"{self._base}/v1/{signal}"
        try:
            answer = await self._workers.run(lambda: self._http.request("POST", url, self._headers, data))
        except HttpError as error:
            raise BusyError(str(error), reached=error.reached) from None
        if answer.status in RETRYABLE_HTTP:
            raise BusyError(f"HTTP {answer.status}", answer.retry_after)
        if not 200 <= answer.status < 300:
            raise RefusedError(f"HTTP {answer.status}")

    async def close(self) -> None:
        self._http.close()
