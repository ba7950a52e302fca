"""One job of many ranks on one collector: CPU per rank report, skip to incident, memory, and how long the page waits.

    python benchmarks/scale.py [--ranks 1024 4096 16384] [--seconds 10] [--json]

The ranks are simulated: no processes and no monitors, but their reports, made by the monitor's code, in the intervals
of the monitor's rules, over gRPC to a real collector process, 64 ranks to a request as an OpenTelemetry Collector in
front of it batches them. Each rank is in three process groups: the world, eight neighbours, every eighth rank. After a
steady phase one rank leaves out a collective of the world; all others wait there, report that they are stalled, with
stacks, and the collector is to name the rank.

CPU time is read from /proc, so it is right on a shared machine; "skip to incident" is wall time, and longer where the
machine is busy. Prints a table for docs/scale.md, or one JSON object a line with ``--json``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from otel_fr_collector.control import REPORT_INTERVAL

from benchmarks.collector import Server, collector
from otel_fr import identity, semconv
from otel_fr.config import STALL_SHARE
from otel_fr.monitor.brief_reports import FULL_SECONDS, BriefReports
from otel_fr.monitor.report_builder import log_record
from otel_fr.monitor.rules import Cadence, Situation
from otel_fr.monitor.span_builder import SCOPE
from otel_fr.otlp_attributes import attributes
from otel_fr.rank_report import DEFAULT_PEER_TIMEOUT, DropCounts, RankReport, ReportedCall, ReportedGroup

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
BATCH = 64
"""Ranks to a request."""
STALL = 5.0
"""Default of ``OTEL_FR_STALL_SECONDS``."""
GIVE_UP = 60.0
"""Seconds after which an incident is not waited for any more."""
TICK = 0.02
"""Seconds between two looks at which simulated monitors are due to report; they have no event to wait for."""
WARM_SECONDS = 6.0
"""In which each rank has reported in full, and again."""

# Numbers that stand in the requests, which are made once, for those that each sending puts in their place: of equal
# length, and found nowhere else.
NUMBER, CALLS, AGE = 70_000_000, 80_000_000, 7.654321

STACK = "Thread MainThread (most recent call last):\n" + "".join(
    f'  File "/job/src/trainer/module_{depth}.py", line {100 + depth}, in function_{depth}\n    result = step(batch)\n'
    for depth in range(30)
)
"""About 3 kB."""


@dataclass
class Result:
    """Of one size of job.

    Attributes:
        report_us: CPU of the collector per report while all is well, with everything else that it does, microseconds.
        core: share of a core in that time. per_rank_us: CPU per rank and second.
        report_bytes: of a report in a request, with its resource.
        incident_s: from the moment of the skip to the incident, seconds; None: there was none.
        incident_cpu_s: CPU of the collector in that time.
        judging_s: mean duration of a judgement.
        steady_mb, highest_mb: resident memory after the steady phase, and the highest.
        pages: path -> (milliseconds, bytes of the answer as it travels).
    """

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


class Job:
    """The reports of a job's ranks, ``batch`` to a request; ``culprit`` leaves the call out."""

    def __init__(self, world: int, batch: int = BATCH) -> None:
        self.world = world
        self.culprit = world // 3
        self.run_id = identity.run_id(f"job-{world}", 0, "scale")
        self._texts: dict[str, tuple[str, str]] = {}
        everyone = range(world)
        ranks = [rank for rank in everyone if rank != self.culprit]
        self.batches = [tuple(ranks[start : start + batch]) for start in range(0, len(ranks), batch)]
        self.batches.append((self.culprit,))

    def _group(self, name: str, description: str, ranks: range, enqueued: int) -> ReportedGroup:
        if name not in self._texts:
            self._texts[name] = identity.group_id(name, ranks), identity.encode_ranks(ranks)
        id_, members = self._texts[name]
        return ReportedGroup(
            id_,
            name,
            description,
            members,
            "nccl",
            enqueued,
            CALLS,
            0,
            enqueued,
            CALLS,
            is_destroyed=False,
            idle_s=0.01,
        )

    def groups(self, rank: int, *, waits: bool) -> tuple[ReportedGroup, ...]:
        first, world = rank // 8 * 8, self.world
        return (
            self._group("0", "default_pg", range(world), CALLS + waits),
            self._group(f"tp_{first}", "tp", range(first, min(first + 8, world)), CALLS),
            self._group(f"dp_{rank % 8}", "dp", range(rank % 8, world, 8), CALLS),
        )

    def call(self, group: str, number: int, state: str, age: float) -> ReportedCall:
        shape = ((4096, 1024),)
        return ReportedCall(
            group=group, stream="collective", sequence=number, op_id=number, record=number, pair_index=0,
            operation="all_reduce", backend="nccl", input_sizes=shape, input_dtypes=("BFloat16",), output_sizes=shape,
            output_dtypes=("BFloat16",), input_splits=None, output_splits=None, reduce_op="sum", root=None, peer=None,
            tag=None, state=state, timeout_ms=600_000, age_s=age, site="/job/src/trainer/step.py:42 average_gradients",
        )  # fmt: skip

    def report(self, rank: int, *, skipped: bool, told: bool) -> RankReport:
        """Args:
        skipped: the culprit has left its call out. told: with stacks.
        """
        is_culprit = rank == self.culprit
        waits = skipped and not is_culprit
        groups = self.groups(rank, waits=waits)
        calls = []
        if waits:
            calls = [self.call(groups[0].id, CALLS + 1, "scheduled", AGE)]
        elif not skipped and rank // BATCH % 2:
            calls = [self.call(groups[2].id, CALLS, "scheduled", 0.004)]
        first = rank // 8 * 8
        return RankReport(
            rank=rank, number=NUMBER, stall_s=STALL, groups=groups, in_flight=tuple(calls), in_flight_more=0, failed=(),
            idle_s=AGE if skipped else 0.013, dropped=DropCounts(0, 0, 0, 0),
            last=self.call(groups[0].id, CALLS, "completed", 0.05),
            python_blocked=False if told else None, site="/job/src/trainer/data.py:17 load" if told else "",
            stack=STACK if told else "", records_creations=True, running_here=f"{first}-{first + 7}",
        )  # fmt: skip

    def request(
        self, ranks: Iterable[int], event: str, *, skipped: bool = False, told: bool = False, brief: bool = False
    ) -> bytes:
        """``brief``: as it is once a full one has been sent."""
        request = ExportLogsServiceRequest()
        for rank in ranks:
            report = self.report(rank, skipped=skipped, told=told)
            if brief:
                form = BriefReports()
                form.form(report._replace(in_flight=()), 0.0)
                report = form.form(report, 1.0)
            record: LogRecord = log_record(event, report, time.time_ns())
            values: dict[str, str | int] = {
                semconv.SERVICE_NAME: "trainer",
                semconv.HOST_NAME: f"node-{rank // 8}",
                semconv.PROCESS_PID: 4000 + rank,
                semconv.RANK: rank,
                semconv.LOCAL_RANK: rank % 8,
                semconv.WORLD_SIZE: self.world,
                semconv.RUN_ID: self.run_id,
                semconv.JOB_ID: f"job-{self.world}",
                semconv.JOB_ATTEMPT: 0,
            }
            scopes = [ScopeLogs(scope=SCOPE, log_records=[record])]
            request.resource_logs.append(
                ResourceLogs(resource=Resource(attributes=attributes(values)), scope_logs=scopes)
            )
        return request.SerializeToString()


class Batch:
    """The monitors of some ranks: they report when it is time, with one request under way at most.

    The ranks have moved as usual for long, and the collector allows long intervals (docs/telemetry.md).
    """

    def __init__(self, job: Job, ranks: tuple[int, ...], longest: float) -> None:
        self.ranks = ranks
        self.due = 0.0
        self.sent = self.bytes = 0
        self._is_culprit = ranks == (job.culprit,)
        self._full = job.request(ranks, semconv.EVENT_PROGRESS)
        self._brief = job.request(ranks, semconv.EVENT_PROGRESS, brief=True)
        self._skipped = job.request(ranks, semconv.EVENT_PROGRESS, skipped=True)
        event = semconv.EVENT_IDLE if self._is_culprit else semconv.EVENT_STALLED
        self._told = job.request(ranks, event, skipped=True, told=True)
        self._full_due = 0.0
        self._is_told = False
        self._number = NUMBER
        self._calls = CALLS
        self._under_way: grpc.Future[bytes] | None = None
        self._reported = 0.0
        self._cadence = Cadence(STALL, DEFAULT_PEER_TIMEOUT, job.world)
        self._cadence.most = longest
        self._cadence.interval(Situation(0, 0))

    def _interval(self, now: float, skipped_at: float | None) -> float:
        now_ns = int(now * 1e9)
        if skipped_at is None:
            return self._cadence.interval(Situation(now_ns, now_ns))
        since = int(skipped_at * 1e9)
        return self._cadence.interval(Situation(now_ns, since, None if self._is_culprit else 1, since))

    def step(self, export: grpc.UnaryUnaryMultiCallable[bytes, bytes], now: float, skipped_at: float | None) -> None:
        """Send what is due."""
        interval = self._interval(now, skipped_at)
        self.due = min(self.due, self._reported + interval) if self._reported else self.due
        is_told = skipped_at is None or self._is_told or now - skipped_at < STALL_SHARE * STALL
        if is_told and now < self.due:
            return
        if self._under_way is not None and not self._under_way.done():
            return  # a monitor, too, waits for the answer
        if is_told:
            self._reported, self.due = now, now + interval
        if skipped_at is not None:
            data = self._skipped if is_told else self._told
            self._is_told = self._is_told or not is_told
        elif now < self._full_due:
            data = self._brief
        else:
            data = self._full
            share = random.uniform(0.5, 1.0) if not self._full_due else 1.0  # as monitors do
            self._full_due = now + share * FULL_SECONDS
        self._send(export, data, 0.0 if skipped_at is None else now - skipped_at)
        self._calls += 20 if skipped_at is None else 0

    def _send(self, export: grpc.UnaryUnaryMultiCallable[bytes, bytes], data: bytes, still: float) -> None:
        self._number += 1
        for mark, value in ((NUMBER, self._number), (CALLS + 1, self._calls + 1), (CALLS, self._calls)):
            data = data.replace(str(mark).encode(), str(value).encode())
        data = data.replace(str(AGE).encode(), f"{still:.6f}"[:8].encode())
        self._under_way = export.future(data, timeout=30)
        self.sent += len(self.ranks)
        self.bytes += len(data)


def _until(batches: list[Batch], export: grpc.UnaryUnaryMultiCallable[bytes, bytes], end: float) -> None:
    while (now := time.monotonic()) < end:
        for batch in batches:
            batch.step(export, now, None)
        time.sleep(TICK)


def measure(world: int, batch: int, seconds: float, longest: float, folder: Path) -> Result:
    """One job of ``world`` ranks: ``seconds`` of steady reports, ``longest`` seconds apart at most, then the skip."""
    result = Result(world)
    job = Job(world, batch)
    server = collector(folder)
    try:
        options = [("grpc.max_send_message_length", -1)]
        with grpc.insecure_channel(server.address, options=options) as channel:
            export = channel.unary_unary(EXPORT, None, None)
            batches = [Batch(job, ranks, longest) for ranks in job.batches]
            start = time.monotonic()
            for index, one in enumerate(batches):
                one.due = start + index / len(batches) * WARM_SECONDS / 2
            _until(batches, export, start + WARM_SECONDS)  # the ranks, their groups and signatures are new
            sent, size = sum(batch.sent for batch in batches), sum(batch.bytes for batch in batches)
            cpu, begun = server.cpu(), time.monotonic()
            _until(batches, export, begun + seconds)
            cpu, wall = server.cpu() - cpu, time.monotonic() - begun
            result.reports = sum(batch.sent for batch in batches) - sent
            result.report_us = round(1e6 * cpu / result.reports, 1)
            result.report_bytes = round((sum(batch.bytes for batch in batches) - size) / result.reports)
            result.core, result.per_rank_us = round(cpu / wall, 3), round(1e6 * cpu / wall / world, 1)
            result.steady_mb = round(_resident(server), 1)
            _skip(result, server, batches, export, folder / "incidents.jsonl")
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
    export: grpc.UnaryUnaryMultiCallable[bytes, bytes],
    incidents: Path,
) -> None:
    """The culprit leaves the call out; wait for the incident."""
    cpu, skipped = server.cpu(), time.monotonic()
    while (now := time.monotonic()) < skipped + GIVE_UP:
        for batch in batches:
            batch.step(export, now, skipped)
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
    def get(path: str) -> bytes:
        request = urllib.request.Request(server.http + path, headers={"Accept-Encoding": "gzip"})
        begun = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as answer:
            data: bytes = answer.read()
            packed = answer.headers.get("Content-Encoding") == "gzip"
        result.pages[path] = round(1000 * (time.monotonic() - begun)), len(data)
        if packed:
            data = gzip.decompress(data)
        return data

    jobs = json.loads(get("/api/v1/jobs"))["jobs"]
    get(f"/api/v1/jobs/{jobs[0]['id']}")
    get("/api/v1/incidents")
    get("/healthz")


def table(results: list[Result]) -> str:
    """For docs/scale.md."""
    head = ("ranks", "a report", "bytes a report", "of a core, steady", "skip to incident", "CPU until then",
            "judgement", "memory steady, highest", "the job's page")  # fmt: skip
    rows = [head, ("---",) * len(head)]
    for one in results:
        job = next((value for path, value in one.pages.items() if path.count("/") == 4), (0.0, 0))
        found = "none" if one.incident_s is None else f"{one.incident_s} s"
        rows.append(
            (
                f"{one.ranks:,}", f"{one.report_us} µs", f"{one.report_bytes:,}", f"{one.core:.1%}", found,
                f"{one.incident_cpu_s} s", f"{one.judging_s} s", f"{one.steady_mb:.0f}, {one.highest_mb:.0f} MB",
                f"{job[0]:.0f} ms, {job[1] / 1e3:,.0f} kB",
            )
        )  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1_024, 4_096, 16_384], help="sizes of jobs")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the steady phase")
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="ranks to a request; 1: monitors send to the collector"
    )
    parser.add_argument("--longest", type=float, default=REPORT_INTERVAL, help="seconds between reports, as allowed")
    parser.add_argument("--json", action="store_true", help="one JSON object for each size")
    options = parser.parse_args()
    results = []
    for world in options.ranks:
        with tempfile.TemporaryDirectory() as name:
            results.append(measure(world, options.batch, options.seconds, options.longest, Path(name)))
        if options.json:
            print(json.dumps(asdict(results[-1])), flush=True)
    if not options.json:
        print(table(results))
    good = all(one.incident_s is not None and f"rank {one.ranks // 3} " in one.named for one in results)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
