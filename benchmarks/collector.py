"""What the collector ingests: spans per second and core, and its memory, compared with a do-nothing OTLP sink.

    python benchmarks/collector.py [--spans 160000] [--rounds 3] [--forward] [--metrics on|off]

Sender processes replay the requests of real monitors (512 spans of one rank each) over gRPC, to a real collector
process and to a sink: OTLP's generated gRPC service, which decodes each request and returns. Both are sent requests as
fast as they answer. CPU time is read from /proc, so "per core" is right on a shared machine too. ``--forward`` also
measures the collector with the sink as its backend. With ``--metrics on`` only the collector is measured, in turn
without the ranks' metrics and with them: a request of 10 kinds of calls for as many spans as a rank has in 15 s at 300
calls a second. The targets: 50,000 spans/s per core and 0.6 of the sink's
rate for full batches, one of these for the small ones of 256 jobs; and memory that grows neither with the number of
jobs nor with the number of spans.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

import grpc
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import SIGNATURES, SITES, Server, collector, sink
from otel_fr import identity, semconv
from otel_fr.config import SpanBatching
from otel_fr.monitor.telemetry.export import spans_request
from otel_fr.monitor.telemetry.metrics import RankMetrics
from otel_fr.monitor.telemetry.span_builder import SpanBuilder
from otel_fr.otlp_attributes import attributes
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, Record, RecordState

LIMIT_RATE = 50_000
LIMIT_SINK_RATIO = 0.6
LIMIT_GROWTH = 2.0
"""Highest memory with more jobs and under overload, including requests in flight, as a multiple of one job's memory."""
WORLD = 8
SENDERS = 2
AT_ONCE = 4
"""Requests that one sender has in flight."""
OVERLOAD = 10
JOBS = 256
"""Jobs that send small batches."""
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
SPANS_PER_METRICS = 4_500
"""Spans of one rank in `otel_fr.config.DEFAULT_METRIC_INTERVAL` at 300 calls a second."""
KINDS = 10
"""Kinds of calls in a rank's metrics."""


@dataclass(frozen=True)
class Load:
    """Each sender has ``requests`` of ``batch`` spans, ``at_once`` in flight. ``metrics``: with the ranks' metrics."""

    jobs: int
    batch: int
    requests: int
    at_once: int = AT_ONCE
    metrics: bool = False

    @classmethod
    def of(cls, jobs: int, spans: int) -> Load:
        """Return a load of about so many spans, in monitors' batches if all jobs together send what a core can take."""
        batch = min(SpanBatching().batch_size, LIMIT_RATE // (jobs * WORLD))
        rounds = max(2, spans // (batch * jobs * WORLD))
        return cls(jobs, batch, rounds * jobs * WORLD // SENDERS)


@dataclass
class Result:
    """``spans`` of ``sent`` accepted in ``cpu`` seconds of the receiver; ``memory``: highest resident MB."""

    spans: int
    sent: int
    cpu: float
    wall: float
    memory: float

    @property
    def rate(self) -> float:
        return self.spans / self.cpu if self.cpu else 0.0


@dataclass(frozen=True)
class Rates:
    """The collector's spans/s per core, and their ratio to the sink's: medians over the rounds, which are pairs."""

    rate: float
    of_sink: float

    @classmethod
    def of(cls, sink: list[Result], collector: list[Result]) -> Rates:
        shares = [ours.rate / theirs.rate for theirs, ours in zip(sink, collector, strict=True)]
        return cls(statistics.median(result.rate for result in collector), statistics.median(shares))

    def reaches_both(self) -> bool:
        return self.rate >= LIMIT_RATE and self.of_sink >= LIMIT_SINK_RATIO

    def reaches_one(self) -> bool:
        return self.rate >= LIMIT_RATE or self.of_sink >= LIMIT_SINK_RATIO


class Request(NamedTuple):
    """``spans``: how many; 0: a request of metrics."""

    data: bytes
    spans: int


def batches(jobs: int, batch: int, sender: int, metrics: bool = False) -> Iterator[Request]:
    """Yield requests of the sender's ranks in turn, endlessly: 40 signatures, 10 call sites, one group for each job."""
    ranks = tuple(range(WORLD))
    group = GroupDef(identity.group_id("0", ranks), "0", "default_pg", ranks, "nccl", 0)

    def record(number: int) -> Record:
        issued, signature, site = number * 10**6, SIGNATURES[number % 40], SITES[number % 10]
        return Record(
            number, issued, None, issued + 500_000, RecordState.COMPLETED, number, 0, number, 0, KIND_COLLECTIVE, 0,
            600_000, "MainThread", group, signature, site,
        )  # fmt: skip

    builders: list[tuple[SpanBuilder, Resource, RankMetrics]] = []
    for job in range(jobs):
        run = identity.run_id(f"job-{job}", 0, "benchmark")
        for rank in ranks[sender::SENDERS]:
            values: dict[str, str | int] = {
                semconv.SERVICE_NAME: "trainer", semconv.HOST_NAME: f"node-{job}", semconv.PROCESS_PID: 1000 + rank,
                semconv.RANK: rank, semconv.LOCAL_RANK: rank, semconv.WORLD_SIZE: WORLD, semconv.RUN_ID: run,
                semconv.JOB_ID: f"job-{job}", semconv.JOB_ATTEMPT: 0,
            }  # fmt: skip
            resource = Resource(attributes=attributes(values))
            builders.append((SpanBuilder(run, rank, time.time_ns()), resource, RankMetrics(run, rank, time.time_ns())))
    kinds = [record(number)._replace(signature=replace(SIGNATURES[0], operation=f"operation{number}"))
             for number in range(KINDS)]  # fmt: skip
    for first in itertools.count(1, batch):
        is_due = metrics and first // SPANS_PER_METRICS != (first + batch) // SPANS_PER_METRICS
        for builder, resource, of_rank in builders:
            spans = (builder.encode(record(number)) for number in range(first, first + batch))
            yield Request(spans_request(resource, [b"".join(spans)]).SerializeToString(), batch)
            if is_due:
                for kind in kinds:
                    of_rank.add(kind)
                found = of_rank.request(resource, ())
                assert found is not None
                yield Request(found.SerializeToString(), 0)


def _send(address: str, load: Load, sender: int, barrier: Barrier, answers: Queue[tuple[int, int]]) -> None:
    """Run a sender process. Its first requests warm up the receiver, and the rest are measured."""
    made = batches(load.jobs, load.batch, sender, load.metrics)
    prepared = [next(made) for _ in range(load.requests)]
    channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
    traces, metrics = (channel.unary_unary(method, None, None) for method in (EXPORT, METRICS))
    warm = len(prepared) // 4 // WORLD * WORLD
    for some in (prepared[:warm], prepared[warm:]):
        barrier.wait()
        taken = 0
        under_way: deque[tuple[int, grpc.Future[bytes]]] = deque()
        for request in some:
            if len(under_way) >= load.at_once:
                taken += _taken(*under_way.popleft())
            export = traces if request.spans else metrics
            under_way.append((request.spans, export.future(request.data, timeout=100, wait_for_ready=True)))
        taken += sum(_taken(*one) for one in under_way)
        barrier.wait()
    answers.put((sum(request.spans for request in prepared[warm:]), taken))


def _taken(spans: int, call: grpc.Future[bytes]) -> int:
    """Return the number of accepted spans.

    Raises:
        RuntimeError: metrics were not accepted, so they would not be measured.
    """
    error = call.exception()
    if error is not None and not spans:
        raise RuntimeError(f"a request of metrics was not accepted: {error}")
    return spans if error is None else 0


def measure(server: Server, load: Load) -> Result:
    """Send the load from `SENDERS` processes and watch the receiver."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(SENDERS + 1)
    answers: Queue[tuple[int, int]] = context.Queue()
    senders = [
        context.Process(target=_send, args=(server.address, load, number, barrier, answers), daemon=True)
        for number in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    barrier.wait()  # all have prepared
    barrier.wait()  # warmed up
    cpu, wall = server.cpu(), time.monotonic()
    barrier.wait()
    barrier.wait()
    cpu, wall = server.cpu() - cpu, time.monotonic() - wall
    sent, taken = (sum(numbers) for numbers in zip(*(answers.get() for _ in senders), strict=True))
    for sender in senders:
        sender.join()
    return Result(taken, sent, cpu, wall, server.memory())


def show(name: str, result: Result, note: str = "") -> None:
    share = "" if result.spans == result.sent else f"  accepted {result.spans / result.sent:.0%}"
    print(
        f"{name:34} {result.rate:9,.0f} spans/s per core {result.cpu / result.wall:5.0%} of a core"
        f" {result.memory:7.0f} MB{share}{note}",
        flush=True,
    )


def correlated(server: Server, result: Result) -> str:
    """Return a note about spans that the collector has not completed."""
    kept = server.metric("otel_fr_collector_pending_calls")
    return "" if not kept else f"  {kept:,.0f} calls still pending"


def compare_metrics(folder: Path, spans: int, rounds: int) -> int:
    """Measure the collector without and with the ranks' metrics, in turn. The figure is the median of the ratios."""
    load = Load.of(1, spans)
    ratios: list[float] = []
    rate = {False: 0.0, True: 0.0}
    for number in range(rounds):
        for metrics in (False, True) if number % 2 else (True, False):
            server = collector(folder)
            try:
                result = measure(server, replace(load, metrics=metrics))
            finally:
                server.stop()
            show(f"collector, metrics {'on' if metrics else 'off'}", result)
            rate[metrics] = result.rate
        ratios.append(rate[True] / rate[False])
    answer = {"ratio": round(statistics.median(ratios), 3), "lowest": round(min(ratios), 3)}
    print(json.dumps({**answer, "highest": round(max(ratios), 3), "rounds": rounds}))
    return 0 if rate[True] >= LIMIT_RATE else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=160_000, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of sink and collector in turn")
    parser.add_argument("--forward", action="store_true", help="also with the sink as the collector's backend")
    parser.add_argument("--metrics", choices=("on", "off"), default="off", help="on: compare with and without them")
    options = parser.parse_args()
    if options.metrics == "on":
        with tempfile.TemporaryDirectory() as name:
            return compare_metrics(Path(name), options.spans, options.rounds)
    one, many = Load.of(1, options.spans), Load.of(JOBS, options.spans)
    measured: dict[tuple[str, Load], list[Result]] = {}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def start(*more: str) -> Server:
            return collector(folder, *more)

        def run(title: str, server: Server, load: Load) -> Result:
            try:
                result = measure(server, load)
                show(title, result, correlated(server, result) if server.http else "")
            finally:
                server.stop()
            return result

        for _, load in itertools.product(range(options.rounds), (one, many)):
            for title in ("sink", "collector"):
                jobs = f"{load.jobs} job" + "s" * (load.jobs > 1)
                result = run(f"{title}, {jobs}", sink(folder) if title == "sink" else start(), load)
                measured.setdefault((title, load), []).append(result)
                memory[f"{title}, {jobs}"] = result.memory
        memory["16 jobs"] = run("collector, 16 jobs", start(), Load.of(16, options.spans)).memory
        overload = replace(one, at_once=one.at_once * OVERLOAD)
        memory["overload"] = run(f"collector, {OVERLOAD} x the requests", start(), overload).memory
        if options.forward:
            behind = sink(folder)
            try:
                run("collector that forwards, 1 job", start("--forward", f"http://{behind.address}"), one)
            finally:
                behind.stop()
    full, small = (Rates.of(measured["sink", load], measured["collector", load]) for load in (one, many))
    growth = max(value for key, value in memory.items() if "sink" not in key) / memory["collector, 1 job"]
    answer = {
        "spans_per_s_per_core": round(full.rate),
        "sink_ratio": round(full.of_sink, 2),
        "small_batches_per_s_per_core": round(small.rate),
        "small_batches_sink_ratio": round(small.of_sink, 2),
        "limit": LIMIT_RATE,
        "sink_limit": LIMIT_SINK_RATIO,
        "memory_mb": {key: round(value, 1) for key, value in memory.items()},
        "memory_growth": round(growth, 2),
        "growth_limit": LIMIT_GROWTH,
    }
    print(json.dumps(answer))
    return 0 if full.reaches_both() and small.reaches_one() and growth <= LIMIT_GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
