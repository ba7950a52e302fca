"""Jobs of many ranks on one collector: CPU per rank report, skip to incident, memory, and how long the page waits.

    python benchmarks/scale.py [--ranks 1024 16384 100000] [--jobs 2048x8] [--seconds 10] [--stalls 10] [--json]

The ranks are simulated (`benchmarks.simulated_ranks`): there are no processes and no monitors. The monitor's code makes
their reports, in the intervals of the monitor's rules, and sends them over gRPC to a real collector process. A request
has eight reports, as from the monitors of a machine; reports of the largest jobs come through gateways, which batch
more. Each rank is in three process groups: the world, eight neighbours, every eighth rank. After a steady phase one
rank leaves out a collective of the world. All others wait there and report it as monitors do, and the collector must
name the rank. Then the rank makes its call, all move again, and the next stall follows. Of many jobs, one has this
fault.

CPU time is read from /proc, so it is right on a shared machine; "skip to incident" is wall time, and longer where the
machine is busy. Prints tables for benchmarks/RESULTS.md, or one JSON value a line with ``--json``: the jobs, and what
a report of each kind costs (`benchmarks.report_costs`).
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import itertools
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


from otel_fr_collector import timeline

from benchmarks import report_costs
from benchmarks.measured import Server, collector, memory_mb, sink
from benchmarks.simulated_ranks import Batch, Job
from otel_fr.otlp_sender import CHANNEL_OPTIONS

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
GIVE_UP = 60.0
"""Longest wait for an incident, in seconds."""
TICK = 0.02
"""Seconds between two checks which simulated monitors are due to report. There is no event to wait for."""
WARM_SECONDS, WARM_RANKS = 6.0, 4_096
"""Seconds until each rank has sent a full and then a brief report, and the number of ranks that add a second."""
MANY_JOBS = "2048x8"
RESUMED_SECONDS = timeline.AGAIN_SECONDS + 5.0
"""Seconds between two stalls. An earlier stall of the same rank would be the same incident."""
SINK_SECONDS = 15.0
"""Seconds for which the server that does nothing is measured."""
STALLS = 10
CONNECTIONS = 256
"""Most connections. A collector takes 100 requests of one connection at a time."""
T = TypeVar("T")
MACHINE = 8
"""Ranks of a machine. They report in one request."""
DIRECT = 16_384
"""Most ranks of a job with machines that send to the collector. Machines of larger jobs send to gateways, which divide
the job into `BATCHES` requests."""
BATCHES = 256


@dataclass
class Result:
    """The results of one collector.

    Attributes:
        jobs, ranks: how many jobs, of how many ranks each.
        report_us: all CPU of the collector per report in the steady phase, in microseconds.
        core: share of a core in that time. per_rank_us: CPU per rank and second.
        report_bytes: of a report in a request, with its resource.
        sink_us: CPU per report of a server that takes the same requests and does nothing.
        incidents_s: seconds from each skip to its incident; `GIVE_UP`: there was none.
        incident_cpu_s: CPU of the collector in that time, for the first skip.
        refused: requests that the collector refused.
        judging_s: mean duration of a judgement.
        steady_mb, highest_mb: resident memory after the steady phase, and the highest.
        pages: path -> (milliseconds, bytes of the answer as it travels).
    """

    jobs: int
    ranks: int
    reports: int = 0
    report_us: float = 0.0
    core: float = 0.0
    per_rank_us: float = 0.0
    report_bytes: int = 0
    sink_us: float = 0.0
    incidents_s: list[float] = field(default_factory=list)
    incident_cpu_s: float = 0.0
    refused: int = 0
    judging_s: float = 0.0
    named: str = ""
    steady_mb: float = 0.0
    highest_mb: float = 0.0
    pages: dict[str, tuple[float, int]] = field(default_factory=dict)


def batch_size(world: int) -> int:
    """Return the number of ranks in a request of a job of this size."""
    return MACHINE if world <= DIRECT else world // BATCHES


def until(batches: list[Batch], end: float) -> None:
    """Let all ranks move until ``end`` (monotonic)."""
    while (now := time.monotonic()) < end:
        for batch in batches:
            batch.step(now, None)
        time.sleep(TICK)


def batches_of(jobs: list[Job], batch: int, longest: float) -> list[Batch]:
    """Return the monitors, ``batch`` ranks to a request. The last batch is the culprit's.

    The first job has its own requests, because one of its ranks leaves out a call later.
    """
    first, *others = jobs
    ranks = [rank for rank in range(first.world) if rank != first.culprit]
    parts: list[list[tuple[Job, tuple[int, ...]]]] = []
    for witnesses in (True, False):
        own = [rank for rank in ranks if first.is_witness(rank) is witnesses]
        parts += [[(first, tuple(some))] for some in _pieces(own, batch)]
    together = max(1, batch // first.world)
    parts += [[(job, tuple(range(job.world))) for job in some] for some in _pieces(others, together)]
    parts.append([(first, (first.culprit,))])
    return [Batch(part, longest) for part in parts]


def _pieces(items: list[T], size: int) -> list[list[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def measure(count: int, world: int, batch: int, seconds: float, longest: float, stalls: int, folder: Path) -> Result:
    """Run jobs of ``world`` ranks: ``seconds`` of steady reports, at most ``longest`` seconds apart, then the skips."""
    result = Result(count, world)
    jobs = [Job(world, number) for number in range(count)]
    server = collector(folder, "--job-memory", "768MiB")
    try:
        batches = batches_of(jobs, batch, longest)
        with connected(server, batches):
            begin(batches, jobs)
            sent, size = sum(batch.sent for batch in batches), sum(batch.bytes for batch in batches)
            cpu, begun = server.cpu(), time.monotonic()
            until(batches, begun + seconds)
            cpu, wall = server.cpu() - cpu, time.monotonic() - begun
            result.reports = sum(batch.sent for batch in batches) - sent
            result.report_us = round(1e6 * cpu / result.reports, 1)
            result.report_bytes = round((sum(batch.bytes for batch in batches) - size) / result.reports)
            result.core, result.per_rank_us = round(cpu / wall, 3), round(1e6 * cpu / wall / (count * world), 1)
            result.steady_mb = round(memory_mb(server.process.pid, "VmRSS"), 1)
            incidents = Incidents(folder / "incidents.jsonl")
            for number in range(stalls):
                if number:
                    _resume(batches, jobs[0])
                _skip(result, server, batches, jobs[0], incidents)
            result.refused = sum(batch.refused for batch in batches)
            _pages(result, server)
            result.sink_us = _sink_us(batches, folder)
        result.judging_s = round(_judging(server), 3)
        result.highest_mb = round(server.memory(), 1)
    finally:
        server.stop()
    return result


def begin(batches: list[Batch], jobs: list[Job]) -> None:
    """Warm up: let the collector learn ranks, groups and signatures. The first job will have the fault."""
    for one in batches:
        if one.job is jobs[0]:
            one.prepare()
    start = time.monotonic()
    warm = WARM_SECONDS + sum(job.world for job in jobs) / WARM_RANKS
    for index, one in enumerate(batches):
        one.due = start + index / len(batches) * warm / 2
    until(batches, start + warm)


class Incidents:
    """The incidents in a collector's file.

    Attributes:
        latest: id -> the incident's last state.
        twice: incidents that were written as new more than once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.latest: dict[str, dict[str, Any]] = {}
        self.twice = 0

    def opened(self) -> list[dict[str, Any]]:
        """Return the incidents that have opened since the last call."""
        if not self._path.exists() or self._path.stat().st_size == self._read:
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data, _, _ = file.read().rpartition(b"\n")  # the last line may be incomplete
        self._read += len(data) + bool(data)
        found = []
        for one in map(json.loads, data.splitlines()):
            if one["id"] not in self.latest:
                found.append(one)
            elif one["revision"] == 1:
                self.twice += 1
            self.latest[one["id"]] = one
        return found


def _skip(result: Result, server: Server, batches: list[Batch], job: Job, incidents: Incidents) -> None:
    """Let the job's culprit leave out a call, and wait for the incident."""
    incidents.opened()
    cpu, skipped = server.cpu(), time.monotonic()
    while (now := time.monotonic()) < skipped + GIVE_UP:
        for batch in batches:
            batch.step(now, skipped if batch.job is job else None)
        if found := incidents.opened():
            result.named = found[-1]["summary"][:60]
            break
        time.sleep(TICK)
    result.incidents_s.append(round(time.monotonic() - skipped, 2))
    if len(result.incidents_s) == 1:
        result.incident_cpu_s = round(server.cpu() - cpu, 2)


def _resume(batches: list[Batch], job: Job) -> None:
    """Let all ranks of the job move again for some time."""
    for batch in batches:
        if batch.job is job:
            batch.resume()
    until(batches, time.monotonic() + RESUMED_SECONDS)


@contextlib.contextmanager
def connected(server: Server, batches: list[Batch]) -> Iterator[None]:
    """Connect the batches to the server, over `CONNECTIONS` connections at most."""
    options = [*CHANNEL_OPTIONS, ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with contextlib.ExitStack() as stack:
        count = min(len(batches), CONNECTIONS)
        channels = [stack.enter_context(grpc.insecure_channel(server.address, options)) for _ in range(count)]
        for batch, channel in zip(batches, itertools.cycle(channels), strict=False):
            batch.export = channel.unary_unary(EXPORT, None, None)
        yield


def _sink_us(batches: list[Batch], folder: Path) -> float:
    """Return the CPU microseconds per report of the server that does nothing."""
    server = sink(folder)
    try:
        with connected(server, batches):
            cpu, sent = server.cpu(), sum(batch.sent for batch in batches)
            until(batches, time.monotonic() + SINK_SECONDS)
            return round(1e6 * (server.cpu() - cpu) / (sum(batch.sent for batch in batches) - sent), 1)
    finally:
        server.stop()


def _judging(server: Server) -> float:
    name = "otel_fr_collector_judgement_duration_seconds"
    count = server.metric(f"{name}_count")
    return server.metric(f"{name}_sum") / count if count else 0.0


def _pages(result: Result, server: Server) -> None:
    def get(name: str, path: str) -> bytes:
        request = urllib.request.Request(server.http + path, headers={"Accept-Encoding": "gzip"})
        begun = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read()
            packed = answer.headers.get("Content-Encoding") == "gzip"
        result.pages[name] = round(1000 * (time.monotonic() - begun)), len(data)
        if packed:
            data = gzip.decompress(data)
        return data

    jobs = json.loads(get("jobs", "/api/v1/jobs"))["jobs"]
    get("job", f"/api/v1/jobs/{jobs[0]['id']}")
    get("incidents", "/api/v1/incidents?view=brief&include=consequences")  # the page's request
    get("healthz", "/healthz")


def table(results: list[Result]) -> str:
    """Return the table for benchmarks/RESULTS.md."""
    head = ("jobs x ranks", "a report", "taken by a server that does nothing", "bytes a report", "of a core, steady",
            "skip to incident, median and worst", "CPU until then",
            "judgement", "memory steady, highest", "the job list", "the job's page")  # fmt: skip
    rows = [head, ("---",) * len(head)]
    for one in results:
        median, worst = statistics.median(one.incidents_s), max(one.incidents_s)
        found = f"{median:.1f} s, {worst:.1f} s" if worst < GIVE_UP else "none"
        jobs, job = (f"{time:.0f} ms, {size / 1e3:,.0f} kB" for time, size in (one.pages["jobs"], one.pages["job"]))
        rows.append(
            (
                f"{one.jobs:,} x {one.ranks:,}", f"{one.report_us} µs", f"{one.sink_us} µs", f"{one.report_bytes:,}",
                f"{one.core:.1%}",
                found, f"{one.incident_cpu_s} s", f"{one.judging_s} s",
                f"{one.steady_mb:.0f}, {one.highest_mb:.0f} MB", jobs, job,
            )
        )  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _sizes(text: str) -> tuple[int, int]:
    jobs, _, ranks = text.partition("x")
    return int(jobs), int(ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [1_024, 16_384, 100_000]
    parser.add_argument("--ranks", type=int, nargs="*", default=sizes, help="sizes of jobs that are alone")
    parser.add_argument(
        "--jobs", type=_sizes, nargs="*", default=[_sizes(MANY_JOBS)], help="many jobs: JOBSxRANKS, such as 2048x8"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of the steady phase")
    parser.add_argument(
        "--batch", type=int, help=f"ranks to a request (default: {MACHINE}; above {DIRECT:,} ranks as gateways send)"
    )
    parser.add_argument(
        "--longest", type=float, default=timeline.REPORT_INTERVAL, help="seconds between reports, as allowed"
    )
    parser.add_argument("--stalls", type=int, default=STALLS, help="one after the other")
    parser.add_argument("--json", action="store_true", help="one JSON object for each row")
    options = parser.parse_args()
    results = []
    for count, world in [*((1, ranks) for ranks in options.ranks), *options.jobs]:
        batch = options.batch or batch_size(world)
        with tempfile.TemporaryDirectory() as name:
            results.append(measure(count, world, batch, options.seconds, options.longest, options.stalls, Path(name)))
        if options.json:
            print(json.dumps(asdict(results[-1])), flush=True)
    if not options.json:
        print(table(results))
    costs = report_costs.measure()
    print(json.dumps([asdict(one) for one in costs]) if options.json else f"\n{report_costs.table(costs)}")
    good = all(max(one.incidents_s) < GIVE_UP and f"rank {one.ranks // 3} " in one.named for one in results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
