"""A real Jaeger, and the traces in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.external_programs import JAEGER, get, started
from tests.support.ports import free_address, wait_for_port


@dataclass(frozen=True)
class Jaeger:
    """A running Jaeger; the addresses of its OTLP receiver (gRPC) and of its query service (HTTP)."""

    otlp: str
    query: str

    def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans of a trace that it has by now."""
        traces = (get(f"http://{self.query}/api/traces/{trace_id}") or {}).get("data")
        found: list[dict[str, Any]] = traces[0]["spans"] if traces else []
        return found

    def traces(self, service: str) -> list[dict[str, Any]]:
        """All traces of a service that it has by now."""
        found: list[dict[str, Any]] = (
            get(f"http://{self.query}/api/traces?service={service}&limit=5000&lookback=1h") or {}
        ).get("data") or []
        return found

    def services(self) -> list[str]:
        """Names of the services that it has traces from."""
        return sorted((get(f"http://{self.query}/api/services") or {}).get("data") or [])


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


@contextlib.contextmanager
def running_jaeger(folder: Path, config: Path) -> Iterator[Jaeger]:
    """With a configuration that takes its addresses from JAEGER_OTLP_GRPC and JAEGER_QUERY_HTTP and _GRPC."""
    otlp, query = free_address(), free_address()
    env = {"JAEGER_OTLP_GRPC": otlp, "JAEGER_QUERY_HTTP": query, "JAEGER_QUERY_GRPC": free_address()}
    with started(folder / "jaeger.log", str(JAEGER), "--config", str(config), env=env) as process:
        wait_for_port(otlp, process)
        wait_for_port(query, process)
        yield Jaeger(otlp, query)
