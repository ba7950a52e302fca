"""Jobs of many ranks on one collector: CPU per rank report, skip to incident, memory, and how long the page waits.

    python benchmarks/scale.py [--ranks 1024 4096 16384] [--jobs 2048x8] [--seconds 10] [--json]

The ranks are simulated (`benchmarks.simulated_ranks`): no processes and no monitors, but their reports, made by the
monitor's code, in the intervals of the monitor's rules, over gRPC to a real collector process, 64 ranks to a request as
an OpenTelemetry Collector in front of it batches them. Each rank is in three process groups: the world, eight
neighbours, every eighth rank. After a steady phase one rank leaves out a collective of the world; all others wait
there, report that they are stalled, with stacks, and the collector is to name the rank. Of many jobs, one has this
fault.

CPU time is read from /proc, so it is right on a shared machine; "skip to incident" is wall time, and longer where the
machine is busy. Prints tables for benchmarks/RESULTS.md, or one JSON value a line with ``--json``: the jobs, and what
a report of each kind costs (`benchmarks.report_costs`). One row of the first is computed: eight
collectors with a job of 12,500 ranks each, from one that is measured.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from otel_fr_collector.control import REPORT_INTERVAL

from benchmarks import report_costs
from benchmarks.collector import Server, collector
from benchmarks.simulated_ranks import BATCH, Batch, Job

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
GIVE_UP = 60.0
"""Seconds after which an incident is not waited for any more."""
TICK = 0.02
"""Seconds between two looks at which simulated monitors are due to report; they have no event to wait for."""
WARM_SECONDS, WARM_RANKS = 6.0, 8_192
"""In which each rank has reported in full, and again; a second more for so many ranks."""
MANY_JOBS = "2048x8"
T = TypeVar("T")
COLLECTORS, RANKS_OF_EACH = 8, 12_500
"""Of the computed row: 100,000 ranks."""


@dataclass
class Result:
    """Of one collector.

    Attributes:
        jobs, ranks: how many jobs, of how many ranks each.
        report_us: CPU of the collector per report while all is well, with everything else that it does, microseconds.
        core: share of a core in that time. per_rank_us: CPU per rank and second.
        report_bytes: of a report in a request, with its resource.
        incident_s: from the moment of the skip to the incident, seconds; None: there was none.
        incident_cpu_s: CPU of the collector in that time.
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
    incident_s: float | None = None
    incident_cpu_s: float = 0.0
    judging_s: float = 0.0
    named: str = ""
    steady_mb: float = 0.0
    highest_mb: float = 0.0
    pages: dict[str, tuple[float, int]] = field(default_factory=dict)


def _until(batches: list[Batch], export: grpc.UnaryUnaryMultiCallable[bytes, bytes], end: float) -> None:
    while (now := time.monotonic()) < end:
        for batch in batches:
            batch.step(export, now, None)
        time.sleep(TICK)


def _batches(jobs: list[Job], batch: int, longest: float) -> list[Batch]:
    """The monitors, ``batch`` ranks to a request; the first job leaves a call out later, so it has requests of its own.

    The last one is the culprit's.
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


def measure(count: int, world: int, batch: int, seconds: float, longest: float, folder: Path) -> Result:
    """``count`` jobs of ``world`` ranks: ``seconds`` of steady reports, ``longest`` s apart at most, then the skip."""
    result = Result(count, world)
    jobs = [Job(world, number) for number in range(count)]
    server = collector(folder, "--job-memory", "768MiB")
    try:
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(server.address, options=options) as channel:
            export = channel.unary_unary(EXPORT, None, None)
            batches = _batches(jobs, batch, longest)
            for one in batches:
                if one.job is jobs[0]:
                    one.prepare()
            start = time.monotonic()
            warm = WARM_SECONDS + world * count / WARM_RANKS
            for index, one in enumerate(batches):
                one.due = start + index / len(batches) * warm / 2
            _until(batches, export, start + warm)  # the ranks, their groups and signatures are new
            sent, size = sum(batch.sent for batch in batches), sum(batch.bytes for batch in batches)
            cpu, begun = server.cpu(), time.monotonic()
            _until(batches, export, begun + seconds)
            cpu, wall = server.cpu() - cpu, time.monotonic() - begun
            result.reports = sum(batch.sent for batch in batches) - sent
            result.report_us = round(1e6 * cpu / result.reports, 1)
            result.report_bytes = round((sum(batch.bytes for batch in batches) - size) / result.reports)
            result.core, result.per_rank_us = round(cpu / wall, 3), round(1e6 * cpu / wall / (count * world), 1)
            result.steady_mb = round(_resident(server), 1)
            _skip(result, server, batches, jobs[0], export, folder / "incidents.jsonl")
        result.judging_s = round(_judging(server), 3)
        _pages(result, server)
        result.highest_mb = round(server.memory(), 1)
    finally:
        server.stop()
    return result


def _skip(
    result: Result,
    server: Server,
    batches: list[Batch],
    job: Job,
    export: grpc.UnaryUnaryMultiCallable[bytes, bytes],
    incidents: Path,
) -> None:
    """The culprit of the job leaves the call out; wait for the incident."""
    cpu, skipped = server.cpu(), time.monotonic()
    while (now := time.monotonic()) < skipped + GIVE_UP:
        for batch in batches:
            batch.step(export, now, skipped if batch.job is job else None)
        if incidents.exists() and incidents.stat().st_size:
            result.incident_s = round(time.monotonic() - skipped, 2)
            result.named = json.loads(incidents.read_text().splitlines()[0])["summary"][:60]
            break
        time.sleep(TICK)
    result.incident_cpu_s = round(server.cpu() - cpu, 2)


def _judging(server: Server) -> float:
    name = "otel_fr_collector_judgement_duration_seconds"
    count = server.metric(f"{name}_count")
    return server.metric(f"{name}_sum") / count if count else 0.0


def _resident(server: Server) -> float:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * 4096 / 1024 / 1024


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
    get("incidents", "/api/v1/incidents")
    get("healthz", "/healthz")


def table(results: list[Result]) -> str:
    """For benchmarks/RESULTS.md."""
    head = ("jobs x ranks", "a report", "bytes a report", "of a core, steady", "skip to incident", "CPU until then",
            "judgement", "memory steady, highest", "the job list", "the job's page")  # fmt: skip
    rows = [head, ("---",) * len(head)]
    for one in results:
        found = "none" if one.incident_s is None else f"{one.incident_s} s"
        jobs, job = (f"{time:.0f} ms, {size / 1e3:,.0f} kB" for time, size in (one.pages["jobs"], one.pages["job"]))
        rows.append(
            (
                f"{one.jobs:,} x {one.ranks:,}", f"{one.report_us} µs", f"{one.report_bytes:,}", f"{one.core:.1%}",
                found, f"{one.incident_cpu_s} s", f"{one.judging_s} s",
                f"{one.steady_mb:.0f}, {one.highest_mb:.0f} MB", jobs, job,
            )
        )  # fmt: skip
        if (one.jobs, one.ranks) == (1, RANKS_OF_EACH):
            rows.append(_several(one))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _several(one: Result) -> tuple[str, ...]:
    """Collectors that have no part in one another's jobs: as many times what one of them takes."""
    memory = f"{COLLECTORS * one.steady_mb:.0f}, {COLLECTORS * one.highest_mb:.0f} MB"
    return (
        f"{COLLECTORS} x {one.ranks:,} on {COLLECTORS} collectors, computed", "as above", "as above",
        f"{COLLECTORS * one.core:.1%}", "as above", "as above", "as above", memory, "as above", "as above",
    )  # fmt: skip


def _sizes(text: str) -> tuple[int, int]:
    jobs, _, ranks = text.partition("x")
    return int(jobs), int(ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [1_024, 4_096, RANKS_OF_EACH, 16_384]
    parser.add_argument("--ranks", type=int, nargs="*", default=sizes, help="sizes of jobs that are alone")
    parser.add_argument(
        "--jobs", type=_sizes, nargs="*", default=[_sizes(MANY_JOBS)], help="many jobs: JOBSxRANKS, such as 2048x8"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of the steady phase")
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="ranks to a request; 1: monitors send to the collector"
    )
    parser.add_argument("--longest", type=float, default=REPORT_INTERVAL, help="seconds between reports, as allowed")
    parser.add_argument("--json", action="store_true", help="one JSON object for each row")
    options = parser.parse_args()
    results = []
    for count, world in [*((1, ranks) for ranks in options.ranks), *options.jobs]:
        with tempfile.TemporaryDirectory() as name:
            results.append(measure(count, world, options.batch, options.seconds, options.longest, Path(name)))
        if options.json:
            print(json.dumps(asdict(results[-1])), flush=True)
    if not options.json:
        print(table(results))
    costs = report_costs.measure()
    print(json.dumps([asdict(one) for one in costs]) if options.json else f"\n{report_costs.table(costs)}")
    good = all(one.incident_s is not None and f"rank {one.ranks // 3} " in one.named for one in results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
