"""One tenant sends more valid telemetry than the collector can keep or judge: it stays small, and others are served."""

from __future__ import annotations

from pathlib import Path

import grpc

from tests.support import floods
from tests.support.collector_process import running
from tests.support.grpc_calls import LOGS, TRACES
from tests.support.health import HealthWatch
from tests.support.tenants import As, tokens_file

MIB = 1 << 20
MOST_RESIDENT = 400 * MIB
SLOWEST_ANSWER = 1.5


def test_telemetry_that_fills_every_limit_takes_less_than_400_mib(tmp_path: Path) -> None:
    with running(tmp_path, "--quiet", *tokens_file(tmp_path)) as collector, HealthWatch(collector).running() as watch:
        tenant = As(collector, "team-a")
        for number in range(6):
            tenant.send(TRACES, floods.large_shapes(number, "team-a/"), compression=grpc.Compression.Gzip)
        for number in range(3):
            tenant.send(LOGS, floods.stalled_job(number, "team-a/"), compression=grpc.Compression.Gzip)
        tenant.send(LOGS, floods.many_groups(0, "team-a/"), compression=grpc.Compression.Gzip)
        assert collector.resident() < MOST_RESIDENT, f"{collector.resident() / MIB:.0f} MiB"
    assert watch.latencies
    assert watch.slowest < SLOWEST_ANSWER
