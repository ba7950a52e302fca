"""A real Jaeger, and the traces in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.external_programs import JAEGER, get, started
from tests.support.paths import DEPLOY
from tests.support.ports import free_address
from tests.support.waiting import wait_for


@dataclass(frozen=True)
class Jaeger:
    """A running Jaeger, with the addresses of its OTLP receiver (gRPC), its query service (HTTP) and its metrics."""

    otlp: str
    query: str
    metrics: str

    def spans(self, trace_id: str) -> list[dict[str, Any]]:
        """Return the spans that Jaeger has of a trace so far."""
        traces = (get(f"http://{self.query}/api/traces/{trace_id}") or {}).get("data")
        found: list[dict[str, Any]] = traces[0]["spans"] if traces else []
        return found

    def traces(self, service: str) -> list[dict[str, Any]]:
        """Return all traces that Jaeger has of a service so far."""
        found: list[dict[str, Any]] = (
            get(f"http://{self.query}/api/traces?service={service}&limit=5000&lookback=1h") or {}
        ).get("data") or []
        return found

    def services(self) -> list[str]:
        """Return the names of services with traces in Jaeger."""
        return sorted((get(f"http://{self.query}/api/services") or {}).get("data") or [])


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


@contextlib.contextmanager
def running_jaeger(folder: Path) -> Iterator[Jaeger]:
    """Run a Jaeger with the configuration of deploy/."""
    names = ("OTLP_GRPC", "OTLP_HTTP", "QUERY_HTTP", "QUERY_GRPC", "HEALTH")
    env = {f"JAEGER_{name}": free_address() for name in names}
    host, _, port = (metrics := free_address()).rpartition(":")
    env |= {"JAEGER_METRICS_HOST": host, "JAEGER_METRICS_PORT": port}
    env |= {"JAEGER_DATA": str(folder / "jaeger"), "JAEGER_UI_CONFIG": str(DEPLOY / "jaeger" / "ui.json")}
    log = folder / "jaeger.log"
    with started(log, str(JAEGER), "--config", str(DEPLOY / "jaeger" / "jaeger.yaml"), env=env) as process:
        assert wait_for(lambda: get(f"http://{env['JAEGER_HEALTH']}/status")), log.read_text()
        yield Jaeger(env["JAEGER_OTLP_GRPC"], env["JAEGER_QUERY_HTTP"], metrics)
        process.kill()  # a clean end takes ten seconds
