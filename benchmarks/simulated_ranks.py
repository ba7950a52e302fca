"""Reports of simulated ranks. The monitor's code makes them, at the times of the monitor's rules."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable, Sequence

import grpc
from msgspec import structs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import identity, semconv
from otel_fr.config import STALL_SHARE
from otel_fr.monitor.rules import CROWD, WAIT_SECONDS, Cadence, Situation
from otel_fr.monitor.telemetry.brief_reports import STILL_SHARE, BriefReports, full_seconds
from otel_fr.monitor.telemetry.report_builder import log_record
from otel_fr.monitor.telemetry.span_builder import SCOPE
from otel_fr.monitor.witness import is_one
from otel_fr.otlp_attributes import attributes
from otel_fr.rank_report import (
    DEFAULT_INTERVAL,
    DEFAULT_PEER_TIMEOUT,
    DropCounts,
    RankReport,
    ReportedCall,
    ReportedExit,
    ReportedGroup,
)

BATCH = 64
"""Ranks in a request."""
CALLS_A_SECOND = 20
STALL = 5.0
"""Default of ``OTEL_FR_STALL_SECONDS``."""

# Placeholders in requests, which are made only once. Each sending replaces them by numbers of equal length. They occur
# nowhere else in a request. The age is below the age at which a wait is reported.
NUMBER, CALLS, AGE = 70_000_000, 80_000_000, 0.454321
STAMP = 0x7F5EED5EED5EED5E
"""Placeholder for the time of the reports in Unix nanoseconds, 8 bytes."""

STACK = "Thread MainThread (most recent call last):\n" + "".join(
    f'  File "/job/src/trainer/module_{depth}.py", line {100 + depth}, in function_{depth}\n    result = step(batch)\n'
    for depth in range(30)
)
"""About 3 kB."""


def placed(request: bytes, number: int, calls: int, still: float, time_ns: int) -> bytes:
    """Fill in a request's placeholders.

    Args:
        number: of the report. calls: made by each rank. still: seconds for which the ranks have stood still.
        time_ns: when the reports are made, Unix nanoseconds.
    """
    request = request.replace(STAMP.to_bytes(8, "little"), time_ns.to_bytes(8, "little"))
    for mark, value in ((NUMBER, number), (CALLS + 1, calls + 1), (CALLS, calls)):
        request = request.replace(str(mark).encode(), str(value).encode())
    return request.replace(str(AGE).encode(), f"{still:.6f}"[:8].encode())


class Job:
    """The reports of a job's ranks. Groups of a rank: the world, eight neighbours, every eighth rank.

    Args:
        number: distinguishes jobs of one size.
        is_local: the culprit leaves out a call of its eight neighbours; ranks outside wait in the world's next call.
        own_groups: each rank has a further group, with the next rank.

    Attributes:
        culprit: the rank that leaves out the call.
    """

    def __init__(self, world: int, number: int = 0, *, is_local: bool = False, own_groups: bool = False) -> None:
        self.world = world
        self.name = f"job-{world}-{number}"
        self.culprit = world // 3
        self._is_local, self._own_groups = is_local, own_groups
        self.run_id = identity.run_id(self.name, 0, "scale")
        self._texts: dict[str, tuple[str, str]] = {}
        self._began = time.monotonic()

    def calls_at(self, now: float) -> int:
        """Return the number of calls that each rank has made by a monotonic time."""
        return CALLS + int(CALLS_A_SECOND * max(0.0, now - self._began))

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
        """Return the rank's groups. ``waits``: the rank waits in the call that the culprit leaves out."""
        first, world, local = rank // 8 * 8, self.world, waits and self._waits_locally(rank)
        groups = [
            self._group("0", "default_pg", range(world), CALLS + (waits and not local)),
            self._group(f"tp_{first}", "tp", range(first, min(first + 8, world)), CALLS + local),
            self._group(f"dp_{rank % 8}", "dp", range(rank % 8, world, 8), CALLS),
        ]
        if self._own_groups:
            groups.append(self._group(f"own_{rank}", "own", range(rank, min(rank + 2, world)), CALLS))
        return tuple(groups)

    def _waits_locally(self, rank: int) -> bool:
        return self._is_local and rank // 8 == self.culprit // 8

    def is_witness(self, rank: int) -> bool:
        """Return True if the rank reports a wait at once by the monitor's rules."""
        return self.world <= CROWD or self._waits_locally(rank) or is_one(rank, self.world)

    def call(self, group: str, number: int, state: str, age: float) -> ReportedCall:
        shape = ((4096, 1024),)
        return ReportedCall(
            group=group, stream="collective", sequence=number, op_id=number, record=number, pair_index=0,
            operation="all_reduce", backend="nccl", input_sizes=shape, input_dtypes=("BFloat16",), output_sizes=shape,
            output_dtypes=("BFloat16",), input_splits=None, output_splits=None, reduce_op="sum", root=None, peer=None,
            tag=None, state=state, timeout_ms=600_000, age_s=age, site="/job/src/trainer/step.py:42 average_gradients",
        )  # fmt: skip

    def report(
        self, rank: int, *, skipped: bool, told: bool, killed: bool = False, interval: float = DEFAULT_INTERVAL
    ) -> RankReport:
        """Return a rank's report.

        Args:
            skipped: the culprit has left out its call. told: with stacks. killed: the rank's process was killed.
            interval: seconds to the next report, as announced.
        """
        is_culprit = rank == self.culprit
        waits = skipped and not is_culprit
        groups = self.groups(rank, waits=waits)
        calls = []
        if waits:
            calls = [self.call(groups[self._waits_locally(rank)].id, CALLS + 1, "scheduled", AGE)]
        elif not skipped and rank // BATCH % 2:
            calls = [self.call(groups[2].id, CALLS, "scheduled", 0.004)]
        first = rank // 8 * 8
        return RankReport(
            rank=rank, number=NUMBER, stall_s=STALL, groups=groups, in_flight=tuple(calls), in_flight_more=0, failed=(),
            idle_s=AGE if skipped else 0.013, dropped=DropCounts(0, 0, 0, 0),
            last=self.call(groups[0].id, CALLS, "completed", 0.05),
            python_blocked=False if told else None, site="/job/src/trainer/data.py:17 load" if told else "",
            stack=STACK if told else "", records_creations=True, running_here=f"{first}-{first + 7}",
            interval_s=interval, exit=ReportedExit(signal=signal.SIGKILL) if killed else None,
        )  # fmt: skip

    def request(
        self,
        ranks: Iterable[int],
        event: str,
        *,
        skipped: bool = False,
        told: bool = False,
        brief: bool = False,
        listed: bool = False,
        killed: bool = False,
        interval: float = DEFAULT_INTERVAL,
    ) -> bytes:
        """Return a request of reports.

        Args:
            brief: the reports are brief. listed: a full report in the present wait has been sent before.
            interval: as in `report`.
        """
        request = ExportLogsServiceRequest()
        for rank in ranks:
            report = self.report(rank, skipped=skipped, told=told, killed=killed, interval=interval)
            if brief:
                form = BriefReports(self.world)
                form.form(structs.replace(report, in_flight=()), 0.0)
                report = form.form(report, 1.0)
                if not report.is_brief:
                    raise ValueError("a report that should be brief is not")
                if listed:
                    report = structs.replace(report, in_flight=self.report(rank, skipped=skipped, told=False).in_flight)
                elif skipped and rank != self.culprit:  # AGE is shorter than waits that brief reports mention
                    report = structs.replace(report, unlisted_s=AGE)
            record: LogRecord = log_record(event, report, STAMP)
            values: dict[str, str | int] = {
                semconv.SERVICE_NAME: "trainer",
                semconv.HOST_NAME: f"node-{rank // 8}",
                semconv.PROCESS_PID: 4000 + rank,
                semconv.RANK: rank,
                semconv.LOCAL_RANK: rank % 8,
                semconv.WORLD_SIZE: self.world,
                semconv.RUN_ID: self.run_id,
                semconv.JOB_ID: self.name,
                semconv.JOB_ATTEMPT: 0,
            }
            scopes = [ScopeLogs(scope=SCOPE, log_records=[record])]
            request.resource_logs.append(
                ResourceLogs(resource=Resource(attributes=attributes(values)), scope_logs=scopes)
            )
        return request.SerializeToString()


class Batch:
    """The monitors of some ranks. They report in time, with at most one request in flight.

    The ranks have moved as usual for long, and the collector allows long intervals (docs/reference/rank-report.md).

    Args:
        parts: ranks of jobs of one size. For the job with the fault: ranks of this job alone, either all witnesses of
            the world or none.
        longest: longest interval that the collector allows, in seconds.

    Attributes:
        ranks: of the first job. export: sends a request. due: time of the next request (monotonic).
        sent, bytes: reports, and their bytes. refused: requests that the collector refused.
    """

    def __init__(self, parts: Sequence[tuple[Job, tuple[int, ...]]], longest: float) -> None:
        job, ranks = parts[0]
        self.job = job
        self.ranks = ranks
        self.count = sum(len(some) for _, some in parts)
        self.due = 0.0
        self.export: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        self.sent = self.bytes = self.refused = 0
        self._is_culprit = ranks == (job.culprit,)
        self._is_witness = job.is_witness(ranks[0])
        self._parts = parts
        self._full_seconds = full_seconds(job.world)
        self._cadence = Cadence(STALL, DEFAULT_PEER_TIMEOUT, job.world)
        self._cadence.most = longest
        self._cadence.interval(Situation(0, 0))
        self._announced = self._interval(time.monotonic(), None)
        self._full = self._request(semconv.EVENT_PROGRESS)
        self._brief = self._request(semconv.EVENT_PROGRESS, brief=True)
        self._stopped = self._listed = self._skipped = self._told = b""
        self._full_due = 0.0
        self._is_told = self._has_listed = False
        self._number = NUMBER
        self._under_way: grpc.Future[bytes] | None = None
        self._reported = 0.0
        self._told_after = STALL_SHARE * STALL
        self._brief_until = STILL_SHARE * STALL if self._is_culprit else WAIT_SECONDS

    def _request(self, event: str, *, quick: bool = False, **form: bool) -> bytes:
        """Return one request for all parts: encoded requests in a row are one request.

        Args:
            quick: the next report comes soon. form: as in `Job.request`.
        """
        interval = DEFAULT_INTERVAL if quick else self._announced
        return b"".join(job.request(ranks, event, interval=interval, **form) for job, ranks in self._parts)

    def prepare(self) -> None:
        """Make the requests for the time after the culprit has left out its call."""
        self._stopped = self._request(semconv.EVENT_PROGRESS, skipped=True, brief=True)
        self._listed = self._request(semconv.EVENT_PROGRESS, skipped=True, brief=True, listed=True)
        speaks = self._is_culprit or self._is_witness
        self._skipped = self._request(semconv.EVENT_PROGRESS, quick=speaks, skipped=True)
        if speaks:
            event = semconv.EVENT_IDLE if self._is_culprit else semconv.EVENT_STALLED
            self._told = self._request(event, quick=True, skipped=True, told=True)

    def kill(self) -> None:
        """Report that all of the ranks' processes were killed at once."""
        self._send(self._request(semconv.EVENT_EXITED, killed=True), self.job.calls_at(time.monotonic()), 0.0)

    def resume(self) -> None:
        """Let all ranks move again: the culprit has made its call."""
        self._is_told = self._has_listed = False

    def _interval(self, now: float, skipped_at: float | None) -> float:
        now_ns = int(now * 1e9)
        if skipped_at is None:
            return self._cadence.interval(Situation(now_ns, now_ns))
        since = int(skipped_at * 1e9)
        oldest, is_witness = (None, True) if self._is_culprit else (1, self._is_witness)
        return self._cadence.interval(Situation(now_ns, since, oldest, since, is_witness))

    def step(self, now: float, skipped_at: float | None) -> None:
        """Send a request if it is due."""
        interval = self._interval(now, skipped_at)
        self.due = min(self.due, self._reported + interval) if self._reported else self.due
        speaks = skipped_at is not None and (self._is_culprit or self._is_witness)
        has_told = not speaks or self._is_told or now - (skipped_at or 0.0) < self._told_after
        if has_told and now < self.due:
            return
        if self._under_way is not None and not self._under_way.done():
            return  # like a monitor, wait for the answer
        self.refused += self._under_way is not None and self._under_way.exception() is not None
        if has_told:
            self._reported, self.due = now, now + interval
        still = 0.0 if skipped_at is None else now - skipped_at
        if not has_told:
            data, self._is_told = self._told, True
        elif speaks and still >= self._brief_until:
            data = self._skipped
        elif now < self._full_due:
            data = self._brief if skipped_at is None else self._listed if self._has_listed else self._stopped
        else:
            data = self._full if skipped_at is None else self._skipped
            self._has_listed = skipped_at is not None
            share = random.uniform(0.5, 1.0) if not self._full_due else 1.0  # as monitors do
            self._full_due = now + share * self._full_seconds
        self._send(data, self.job.calls_at(now if skipped_at is None else skipped_at), still)

    def _send(self, data: bytes, calls: int, still: float) -> None:
        self._number += 1
        data = placed(data, self._number, calls, still, time.time_ns())
        self._under_way = self.export.future(data, timeout=30)
        self.sent += self.count
        self.bytes += len(data)
