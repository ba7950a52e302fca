"""gRPC calls whose messages are bytes, so that tests choose what goes over the wire."""

from __future__ import annotations

import grpc


def unary(channel: grpc.Channel, method: str) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(method, None, None)


def stream(channel: grpc.Channel, method: str) -> grpc.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream(method, None, None)
