"""The node health service of nvidia-resiliency-ext: nvhcd.HealthCheckService over a Unix socket.

This module encodes messages by hand, so that a wrong field number in otel-fr's own code shows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc


def _text(number: int, value: str) -> bytes:
    data = value.encode()
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def response(*, success: bool, exit_code: int = 0, output: str = "", error: str = "") -> bytes:
    """Return an encoded nvhcd.HealthCheckResponse: bool 1, int32 2, string 3, string 4."""
    data = bytes([1 << 3, 1]) if success else b""
    data += bytes([2 << 3, exit_code]) if exit_code else b""
    return data + (_text(3, output) if output else b"") + (_text(4, error) if error else b"")


@contextlib.contextmanager
def running(path: Path, answer: bytes, *, delay: float = 0.0) -> Iterator[list[bytes]]:
    """Run a service that answers each call with ``answer``, after ``delay`` seconds. Yield the requests."""
    requests: list[bytes] = []

    def handle(request: bytes, _: grpc.ServicerContext) -> bytes:
        requests.append(request)
        time.sleep(delay)
        return answer

    server = grpc.server(ThreadPoolExecutor(2))
    methods = {"RunHealthCheck": grpc.unary_unary_rpc_method_handler(handle)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("nvhcd.HealthCheckService", methods),))
    assert server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield requests
    finally:
        server.stop(None)
