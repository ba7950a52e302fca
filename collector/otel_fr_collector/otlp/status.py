"""How an OTLP server refuses a request: status codes, and when the client may try again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

# The codes of google.rpc.Code, which are also gRPC's.
INVALID_ARGUMENT, DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 4, 7, 8, 12
INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 13, 14, 16

RETRY_SECONDS = (1.0, 3.0)
"""Bounds of the delay before a refused client retries. It is random, so that many clients do not retry at once."""


def retry_delay() -> float:
    """Random seconds after which a client should try again."""
    return random.uniform(*RETRY_SECONDS)  # noqa: S311  spreads load, keeps nothing secret


def status(code: int, text: str, delay: float | None = None) -> Status:
    """A google.rpc.Status, with RetryInfo if ``delay`` is given."""
    found = Status(code=code, message=text)
    if delay is not None:
        found.details.add().Pack(_retry_info(delay))
    return found


def retry_trailers(code: int, text: str, delay: float) -> tuple[tuple[str, bytes], ...]:
    """gRPC trailers that ask a client to try again after ``delay`` seconds.

    ``grpc-status-details-bin`` is what the specification requires. OpenTelemetry's exporter for Python reads
    ``google.rpc.retryinfo-bin`` instead (opentelemetry/exporter/otlp/proto/grpc/exporter.py, 1.45), so both are sent.
    """
    return (
        ("grpc-status-details-bin", status(code, text, delay).SerializeToString()),
        ("google.rpc.retryinfo-bin", _retry_info(delay).SerializeToString()),
    )


def read_retry_delay(trailers: Iterable[Any]) -> float | None:
    """Seconds to wait, from a server's trailers (pairs of name and value). None: they do not say."""
    info = RetryInfo()
    for key, value in trailers:
        if not isinstance(value, bytes):
            continue
        try:
            if key == "google.rpc.retryinfo-bin":
                info = RetryInfo.FromString(value)
            elif key == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    detail.Unpack(info)
        except DecodeError:
            continue
    if not info.HasField("retry_delay"):
        return None
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)


def _retry_info(delay: float) -> RetryInfo:
    return RetryInfo(retry_delay=Duration(seconds=int(delay), nanos=int(delay % 1 * 1e9)))
