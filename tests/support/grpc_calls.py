"""gRPC calls with bytes as messages, so that tests choose the bytes on the wire."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import pytest

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
WATCH = "/otel_fr.control.v1.Control/Watch"


def unary(channel: grpc.Channel, method: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(method, None, None)


def stream(channel: grpc.Channel, method: str) -> grpc.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream(method, None, None)


def refused(send: Callable[[], object]) -> grpc.StatusCode:
    """Return the status with which the server refuses the call."""
    with pytest.raises(grpc.RpcError) as caught:
        send()
    code: grpc.StatusCode = caught.value.code()
    return code
