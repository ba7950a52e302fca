"""The cost of one rank report in the collector, without gRPC: `Ingest.take` in this process.

The figures are CPU time of the thread, with 64 ranks in a request, and the best of several rounds over all ranks. The
ratio to msgspec's decoding of the same texts into plain objects depends less on the machine and its load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from otel_fr_collector.jobs.ingest import Ingest
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import LOGS

from benchmarks.simulated_ranks import BATCH, CALLS, NUMBER, Job, placed
from otel_fr import semconv

RANKS = 2_048
JOBS = 4
"""Rounds for reports that a rank sends once in a wait."""
BEST_OF = 8
"""Rounds of decoding."""


@dataclass
class Cost:
    """Costs of one kind of report: CPU microseconds to take it and to decode its JSON, and bytes with its resource."""

    kind: str
    take_us: float
    decode_us: float
    bytes: int


def measure() -> list[Cost]:
    """Measure the kinds of reports, in the order in which a job's ranks send them."""
    ranks = [tuple(range(start, start + BATCH)) for start in range(0, RANKS, BATCH)]
    found: dict[str, Cost] = {}
    for number in range(JOBS):
        job = Job(RANKS, number)
        full = [job.request(some, semconv.EVENT_PROGRESS) for some in ranks]
        brief = [job.request(some, semconv.EVENT_PROGRESS, brief=True) for some in ranks]
        waits = [job.request(some, semconv.EVENT_PROGRESS, skipped=True) for some in ranks]
        told = [job.request(some, semconv.EVENT_STALLED, skipped=True, told=True) for some in ranks]
        steps = [
            ("full, the first of a rank", full, 0.0),
            *[("full", full, 0.0)] * 3,
            *[("brief", brief, 0.0)] * 3,
            ("full, the first of a wait", waits, 2.5),
            *[("full, the wait continues", waits, still) for still in (3.0, 3.5, 4.0)],
            ("stalled, with 3 kB of stacks", told, 4.4),
        ]
        for kind, requests, seconds in _timed(steps):
            cost = found.get(kind) or found.setdefault(kind, _new(kind, requests))
            cost.take_us = min(cost.take_us, round(1e6 * seconds / RANKS, 1))
    return list(found.values())


def _timed(steps: Sequence[tuple[str, list[bytes], float]]) -> Iterable[tuple[str, list[bytes], float]]:
    """Yield each step with the CPU seconds that a new collector takes for it."""
    now = [1_000.0]
    ingest = Ingest(Runs(), Metrics(), lambda: now[0], lambda: 1e9 + now[0])
    loop = asyncio.new_event_loop()
    calls = CALLS
    for number, (kind, requests, still) in enumerate(steps, NUMBER + 1):
        calls += 0 if still else 20
        now[0] = 1_000.0 + (100.0 + still if still else number - NUMBER)
        sent = [placed(data, number, calls, still, int(1e18 + 1e9 * now[0])) for data in requests]

        async def take(data: list[bytes] = sent) -> None:
            for one in data:
                await ingest.take(LOGS, one)

        begun = time.thread_time()
        loop.run_until_complete(take())
        yield kind, requests, time.thread_time() - begun
    loop.close()


def _new(kind: str, requests: list[bytes]) -> Cost:
    parsed = map(ExportLogsServiceRequest.FromString, requests)
    texts = [of.scope_logs[0].log_records[0].body.string_value for one in parsed for of in one.resource_logs]
    best = float("inf")
    for _ in range(BEST_OF):
        begun = time.thread_time()
        for text in texts:
            msgspec.json.decode(text)
        best = min(best, time.thread_time() - begun)
    return Cost(kind, float("inf"), round(1e6 * best / RANKS, 1), sum(map(len, requests)) // RANKS)


def table(costs: Iterable[Cost]) -> str:
    """Return the table for benchmarks/RESULTS.md."""
    rows = ["| report | CPU in the collector | times msgspec's decoding of its JSON | bytes |", "|---|---|---|---|"]
    rows += [f"| {one.kind} | {one.take_us} µs | {one.take_us / one.decode_us:.1f} | {one.bytes:,} |" for one in costs]
    return "\n".join(rows)
