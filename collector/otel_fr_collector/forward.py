"""Requests sent on to an OTLP/gRPC backend as they came, behind a bounded queue that never holds up ingestion."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from urllib.parse import urlsplit

import grpc
import grpc.aio

from otel_fr_collector.ingest import LOGS, METRICS, TRACES
from otel_fr_collector.metrics import Metrics

_log = logging.getLogger(__name__)

METHODS = {
    TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 256 * 1024 * 1024
ATTEMPTS = 5
FIRST_BACKOFF = 0.25
"""Seconds before the second attempt; doubled for each further one."""
TIMEOUT = 10.0
LOG_EVERY = 60.0

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
"""The codes OTLP calls retryable (opentelemetry-proto, docs/specification.md, OTLP/gRPC response)."""


def parse_target(url: str) -> tuple[str, bool]:
    """``http://HOST:PORT`` or ``https://HOST:PORT`` as (gRPC target, secure); the port defaults to 4317.

    Raises:
        ValueError: the URL is of another form.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{url!r} is not of the form http://HOST:PORT or https://HOST:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or 4317}", parts.scheme == "https"


class Forwarder:
    """Sends requests on, in order, one at a time.

    Args:
        url: of the backend, see `parse_target`.
        max_queued, max_bytes: bounds of the queue; what comes when it is full is dropped and counted.
    """

    def __init__(
        self, url: str, metrics: Metrics, *, max_queued: int = MAX_QUEUED, max_bytes: int = MAX_QUEUED_BYTES
    ) -> None:
        self._target, self._secure = parse_target(url)
        self._metrics = metrics
        self._max_queued = max_queued
        self._max_bytes = max_bytes
        self._queue: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._logged = float("-inf")

    def start(self) -> None:
        """Begin to send; needs a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def offer(self, signal: str, data: bytes) -> bool:
        """Queue one request; False: the queue is full and the request is dropped."""
        if len(self._queue) >= self._max_queued or self._bytes + len(data) > self._max_bytes:
            self._drop("queue_full")
            return False
        self._queue.append((signal, data))
        self._bytes += len(data)
        self._idle.clear()
        self._wake.set()
        return True

    async def stop(self, seconds: float) -> None:
        """Send what is queued for at most so long, then drop the rest."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for _ in self._queue:
            self._drop("shutdown")
        self._queue.clear()

    async def _run(self) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", 4 * 1024 * 1024)]
        credentials = grpc.ssl_channel_credentials() if self._secure else None
        channel = (
            grpc.aio.secure_channel(self._target, credentials, options=options)
            if credentials is not None
            else grpc.aio.insecure_channel(self._target, options=options)
        )
        async with channel:
            while True:
                while not self._queue:
                    self._idle.set()
                    self._wake.clear()
                    await self._wake.wait()
                signal, data = self._queue[0]
                await self._send(channel, signal, data)
                self._queue.popleft()
                self._bytes -= len(data)

    async def _send(self, channel: grpc.aio.Channel, signal: str, data: bytes) -> None:
        call = channel.unary_unary(METHODS[signal], request_serializer=None, response_deserializer=None)
        backoff = FIRST_BACKOFF
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await call(data, timeout=TIMEOUT)
            except grpc.aio.AioRpcError as error:
                if error.code() in RETRYABLE and attempt < ATTEMPTS:
                    await asyncio.sleep(backoff)
                    backoff *= 2
                    continue
                self._drop("unavailable" if error.code() in RETRYABLE else "refused")
                self._complain(f"{error.code().name}: {error.details()}")
                return
            self._metrics.forwarded.labels(signal).inc()
            return

    def _drop(self, reason: str) -> None:
        self._metrics.forward_dropped.labels(reason).inc()
        if reason == "queue_full":
            self._complain("its queue is full")

    def _complain(self, why: str) -> None:
        now = time.monotonic()
        if now - self._logged >= LOG_EVERY:
            self._logged = now
            _log.warning("a request is not forwarded to %s: %s", self._target, why)
