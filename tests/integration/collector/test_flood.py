"""Clients that send or ask more than the collector can keep, judge or answer. It stays small, and serves others."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.support import floods, hostile
from tests.support.collector_process import PROTOBUF, running
from tests.support.flooder import flooding
from tests.support.grpc_calls import LOGS, TRACES
from tests.support.health import HealthWatch
from tests.support.incident_receivers import AlertSink
from tests.support.otlp_messages import field
from tests.support.played_job import Job
from tests.support.tokens import OTHER_TEAM, READER, TEAM, Player, token_options
from tests.support.waiting import wait_for

MIB = 1 << 20
JSON = "application/json"
MOST_RESIDENT = 400 * MIB
SLOWEST_ANSWER = 6.0
"""Seconds, on a busy machine. The tested floods once made it take 30 s and more."""


def large_when_decoded() -> Iterator[tuple[str, bytes, int]]:
    """Yield requests of traces that gzip makes small: the body's type, the body, and the answer's status."""
    head, end = b'{"resourceSpans":[{"scopeSpans":[{"spans":[', b"]}]}]}"
    size = 16 * MIB - 200
    yield PROTOBUF, b"\x0a\x00" * (size // 2), 413  # empty resources
    yield PROTOBUF, field(1, field(2, field(2, b"\x4a\x00" * (size // 2)))), 413  # empty attributes of one span
    yield JSON, head + b",".join([b"{}"] * (size // 3)) + end, 413
    yield JSON, head + b",".join([b'{"status":{}}'] * 160_000) + end, 200
    text = "😀".encode() + b"a" * (size - 100)  # Python needs four bytes for each character
    yield JSON, head + b'{"attributes":[{"key":"a","value":{"stringValue":"' + text + b'"}}]}' + end, 413
    for number in range(25):
        yield PROTOBUF, hostile.long_tails(number), 200


def test_small_requests_that_are_large_when_decoded_neither_block_the_collector_nor_fill_its_memory(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "--quiet") as collector, HealthWatch(collector).running() as watch:
        for kind, body, status in large_when_decoded():
            answer = collector.post("/v1/traces", gzip.compress(body, 1), kind, Content_Encoding="gzip")
            assert answer.status == status, body[:100]
        assert collector.resident() < MOST_RESIDENT, f"{collector.resident() / MIB:.0f} MiB"
    assert watch.latencies
    assert watch.slowest < SLOWEST_ANSWER


def test_telemetry_that_fills_every_limit_takes_less_than_400_mib(tmp_path: Path) -> None:
    with running(tmp_path, "--quiet", *token_options(tmp_path)) as collector, HealthWatch(collector).running() as watch:
        tenant = Player(collector, TEAM)
        for number in range(4):  # two fill the limits; without limits, four take 450 MiB
            tenant.send(TRACES, floods.large_shapes(number, "team-a/"), compression=grpc.Compression.Gzip)
        for number in range(2):
            tenant.send(LOGS, floods.stalled_job(number, "team-a/"), compression=grpc.Compression.Gzip)
        tenant.send(LOGS, floods.many_groups(0, "team-a/"), compression=grpc.Compression.Gzip)
        assert collector.resident() < MOST_RESIDENT, f"{collector.resident() / MIB:.0f} MiB"
    assert watch.latencies
    assert watch.slowest < SLOWEST_ANSWER


@pytest.mark.long
def test_a_flood_of_dead_jobs_of_one_tenant_hardly_delays_the_alert_of_another(tmp_path: Path) -> None:
    """The alert once came 30 s later, or never, because the flood evicted the run before its next report."""
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(contextlib.closing(AlertSink()))
        options = ("--quiet", "--alertmanager", sink.url, *token_options(tmp_path))
        collector = stack.enter_context(running(tmp_path, *options))

        def alerted() -> set[str]:
            return {alert["labels"]["job_id"] for post in list(sink.posts) for alert in post}

        watch = stack.enter_context(HealthWatch(collector).running())
        stack.enter_context(flooding(collector, senders=4))
        collector.authorization = f"Bearer {READER}"
        assert wait_for(lambda: collector.metric("otel_fr_collector_evicted_total", kind="runs") > 0)
        with Job(Player(collector, OTHER_TEAM), 4, "team-b/light") as job:
            job.step()
            job.all_reported()
            job.hang(2)
            assert wait_for(lambda: "team-b/light" in alerted())
    assert watch.slowest < SLOWEST_ANSWER
