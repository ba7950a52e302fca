"""OTLP requests: decoded, counted, and added to their runs. No input raises anything but `MalformedError`."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

from msgspec.structs import replace
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_fr import semconv as names
from otel_fr.rank_report import RankReport, parse
from otel_fr.stacks import site_of
from otel_fr_collector.jobs.asked_stacks import StackRequests
from otel_fr_collector.jobs.calls import MAX_CACHED, Interner
from otel_fr_collector.jobs.numbers import KeyReader, Numbers
from otel_fr_collector.jobs.origins import Origin, SourceError, Sources
from otel_fr_collector.jobs.rank_reports import MemberReader
from otel_fr_collector.jobs.ras import read_ras
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.span_reader import SpanReader
from otel_fr_collector.jobs.workload import take_request
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.in_thread import decode_in_thread
from otel_fr_collector.otlp.log_records import LogRecord, read_record
from otel_fr_collector.otlp.metric_points import read_metric
from otel_fr_collector.otlp.partial import RawRequest, bytes_of, parse_request, resource_of
from otel_fr_collector.otlp.signals import LOGS, METRICS, TRACES, MalformedError
from otel_fr_collector.turns import Turns, Work

CHUNK = 128
"""Spans read before the event loop runs other tasks; a request of 64 MiB contains 250,000."""
CHUNK_BYTES = 256 * 1024
"""Bytes of spans read before the event loop runs other tasks."""
PARSE_ON_LOOP = 1 << 20
"""Bytes of the largest request that is parsed on the event loop (some milliseconds), not in a thread."""
REPORT_ON_LOOP = 64 << 10
"""Bytes of the largest rank report that is parsed on the event loop; one of 4 MiB takes a tenth of a second."""
GROUPS = 256
"""Groups of a report that are learnt before the event loop runs other tasks: some 8 ms if all are new."""
REPORTS = "torch."
"""Prefix of the names of events that carry rank reports."""

CheckJob = Callable[[str], None]


class Ingest:
    """Takes requests of the three signals.

    Args:
        clock, wall: monotonic and Unix time in seconds.
        cached: bytes of all caches.

    Attributes:
        turns: turns of the event loop, for long requests and for other long work.
        keep_ends: stores a request that shows that ranks of these runs ended badly; awaited before the request is
            acknowledged. None: such requests are not stored.
    """

    def __init__(
        self,
        runs: Runs,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        cached: int = MAX_CACHED,
    ) -> None:
        self._runs = runs
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self.stack_requests = StackRequests()
        self._interner = Interner(cached)
        self._spans = SpanReader(self._interner)
        self._sources = Sources(self._interner.budget)
        self._keys = KeyReader(self._interner.budget)
        self.turns = Turns()
        self._items_received = {
            (signal, kind): metrics.items_received.labels(signal, kind)
            for signal, kind in itertools.product((TRACES, METRICS, LOGS), ("otel_fr", "other", "invalid"))
        }
        self.keep_ends: Callable[[Collection[RunId], bytes], Awaitable[None]] | None = None
        self._takers: dict[str, Callable[[RawRequest], Awaitable[bytes]]] = {
            TRACES: self._traces,
            LOGS: self._logs,
            METRICS: self._measurements,
        }

    async def take(self, signal: str, data: bytes, check_job: CheckJob | None = None) -> bytes:
        """Take one request; returns the response's bytes.

        Args:
            check_job: called with the job of each resource before anything is taken; what it raises ends the request.

        Raises:
            MalformedError: nothing of the request was taken.
            TooManyError: it has more resources, scopes or items than are taken.
        """
        if len(data) > PARSE_ON_LOOP:
            request = await decode_in_thread(functools.partial(parse_request, data))
        else:
            request = parse_request(data)
        if check_job is not None:
            await self._check_jobs(request, check_job)
        return await self._takers[signal](request)

    async def _check_jobs(self, request: RawRequest, check_job: CheckJob) -> None:
        work = self.turns.begin()
        for entry in request.entries:
            try:
                source = self._sources.read(resource_of(entry))
            except SourceError as error:
                raise MalformedError(str(error)) from error
            check_job(source.job)
            await work.next()

    def _of_ranks(
        self, request: RawRequest, counts: dict[str, int], problems: list[str]
    ) -> Iterator[tuple[Origin, Sequence[bytes]] | None]:
        """Yield the items of each scope that a rank sent, with their origin; None for a resource without any.

        Items of other senders and of unreadable resources are counted in ``counts``. For unreadable ones, ``problems``
        has the reason.
        """
        for entry in request.entries:
            try:
                origin = self._sources.read(resource_of(entry)).origin
            except SourceError as error:
                counts["invalid"] += sum(len(scope.items) for scope in entry.scopes)
                problems[:] = [str(error)]
                yield None
                continue
            if origin is None:
                counts["other"] += sum(len(scope.items) for scope in entry.scopes)
                yield None
                continue
            for scope in entry.scopes:
                yield origin, scope.items

    async def _traces(self, request: RawRequest) -> bytes:
        counts = {"otel_fr": 0, "other": 0, "invalid": 0}
        invalid: list[str] = []
        work = self.turns.begin()
        for found in self._of_ranks(request, counts, invalid):
            if found is None:
                await work.next()
                continue
            origin, items = found
            run = None
            for some in _chunks(items):
                before = len(invalid)
                calls = self._spans.read(some, invalid)
                counts["otel_fr"] += len(calls)
                counts["invalid"] += len(invalid) - before
                counts["other"] += len(some) - len(calls) - len(invalid) + before
                del invalid[1:-1]
                run = run or self._run(origin)
                if run is not None:
                    add_spans(run, origin.rank, calls, self._clock())
                if work.is_over:
                    await work.next()
                    run = None  # it may have been dropped
        self._count(TRACES, counts)
        self._runs.trim(counts["otel_fr"] + self._spans.take_new_weight())
        if not invalid:
            return b""  # a response without fields
        response = ExportTraceServiceResponse()
        # A warning as OTLP defines it: nothing was rejected, so nothing must be sent again.
        response.partial_success.error_message = invalid[-1]
        return response.SerializeToString()

    async def _logs(self, request: RawRequest) -> bytes:
        counts = {"otel_fr": 0, "other": 0, "invalid": 0}
        reports = {"accepted": 0, "late": 0, "invalid": 0}
        problems: list[str] = []
        ended: set[RunId] = set()
        work = self.turns.begin()
        for found in self._of_ranks(request, counts, problems):
            if found is None:
                await work.next()
                continue
            origin, items = found
            for item in items:
                is_report = False
                try:
                    record = read_record(item)
                    is_report = record.event_name.startswith(REPORTS)
                    given = await _report_of(record, origin.rank, work)
                    learned = None
                    if given is not None and len(given.groups) > GROUPS:
                        learned = await self._learn_groups(origin, given, work)
                    counts["otel_fr" if self._record(origin, record, given, learned, reports, ended) else "other"] += 1
                except ValueError as error:
                    counts["invalid"] += 1
                    reports["invalid"] += is_report
                    problems[:] = [str(error)[:200]]
                if work.is_over:
                    await work.next()
        self._count(LOGS, counts)
        for result, count in reports.items():
            if count:
                self._metrics.rank_reports.labels(result).inc(count)
        if ended and self.keep_ends is not None:
            await self.keep_ends(ended, bytes_of(request))
        response = ExportLogsServiceResponse()
        if problems:
            response.partial_success.error_message = problems[-1]
        return response.SerializeToString()

    async def _measurements(self, request: RawRequest) -> bytes:
        counts = {"otel_fr": 0, "other": 0, "invalid": 0}
        problems: list[str] = []
        work = self.turns.begin()
        for found in self._of_ranks(request, counts, problems):
            if found is None:
                await work.next()
                continue
            origin, items = found
            for item in items:
                try:
                    counts["otel_fr" if self._metric(origin, item) else "other"] += 1
                except ValueError as error:
                    counts["invalid"] += 1
                    problems[:] = [str(error)[:200]]
                await work.next()
        self._count(METRICS, counts)
        self._runs.trim(0)
        response = ExportMetricsServiceResponse()
        if problems:
            response.partial_success.error_message = problems[-1]
        return response.SerializeToString()

    def _metric(self, origin: Origin, item: bytes) -> bool:
        """Take a metric of a rank. False: it is not otel-fr's.

        Raises:
            ValueError: it cannot be decoded.
        """
        metric = read_metric(item)
        if metric.name not in names.RANK_METRICS:
            return False
        run = self._run(origin)
        if run is None or metric.name == names.METRIC_IN_FLIGHT:
            return True
        if run.numbers is None:
            run.numbers = Numbers(run.usage, self._clock)
        for point in metric.points():
            run.numbers.add(origin.rank, metric.name, self._keys.read(point.attributes), point)
        return True

    def _record(
        self,
        origin: Origin,
        record: LogRecord,
        given: RankReport | None,
        learned: Run | None,
        reports: dict[str, int],
        ended: set[RunId],
    ) -> bool:
        """Take a log record of a rank. False: it is not otel-fr's.

        Args:
            given: the record's report; None: it is another event.
            learned: as for `_report`.
            reports: number of rank reports by result, counted up here.
            ended: the run is added here if the report says that its rank has ended badly.

        Raises:
            ValueError: it is not a valid report.
        """
        event = record.event_name
        if event == names.EVENT_WORKLOAD_CONTROL:
            run = self._run(origin)
            if run is not None:
                take_request(run.requests, record, origin.rank, origin.host)
            return True
        if given is None:
            return False
        taken = self._report(origin, event, given, learned, record.time)
        if taken is not None:
            reports["accepted" if taken else "late"] += 1
            if given.exit is not None and not given.exit.is_clean:
                ended.add(origin.run)
        return True

    async def _learn_groups(self, origin: Origin, given: RankReport, work: Work) -> Run | None:
        """Learn the groups of a report with many groups, before the rest of it is taken.

        Returns:
            the run that knows them all now; None: there is none, because there is no room or the run was dropped.
        """
        members, run = MemberReader(self._interner), self._run(origin)
        for start in range(0, len(given.groups), GROUPS):
            if run is None or self._run(origin) is not run or origin.rank not in run.ranks:
                return None
            run.learn_groups(given, given.groups[start : start + GROUPS], members)
            await work.next()
        return run

    def _report(self, origin: Origin, event: str, given: RankReport, learned: Run | None, stamp: float) -> bool | None:
        """Take a report. False: it is late; None: there is no room for its run.

        Args:
            learned: the run that already knows the report's groups; None: they are learnt here.

        Raises:
            ValueError: a group has too many members.
        """
        if event == names.EVENT_DUMP_FAILED:
            given = replace(given, file="")
        run = self._run(origin)
        if run is None:
            return None
        now, wall = self._clock(), self._wall()
        knows_groups = run is learned
        taken = run.apply(given, self._interner, now=now, wall=wall, stamp=stamp, knows_groups=knows_groups)
        if given.exit is not None and given.exit.is_for_nodes:
            run.is_replaced = True  # its launcher ended the rank because nodes join: no fault, nor is what follows
        if given.ras is not None:
            groups = (state.group for state in run.groups.values())
            pid_of = {rank: state.place.pid for rank, state in run.ranks.items()}
            lag = run.ranks[given.rank].lag if given.rank in run.ranks else 0.0
            run.ras = read_ras(given.ras, groups, pid_of, wall - lag)
        if event == names.EVENT_STACKS:
            if taken is not None:
                run.ranks[origin.rank].note_look(given.site or site_of(given.stack))
            self.stack_requests.add(run.id, origin.rank, given.stack)
        if taken is None:
            run.note_file(origin.rank, given.file)
        elif taken:
            self._runs.trim(taken)
        return taken is not None

    def _run(self, origin: Origin) -> Run | None:
        """The run of an origin; None: there is no room for it."""
        now = self._clock()
        run = self._runs.get(origin.run, now)
        if run is None:
            return None
        run.last_seen = now
        state = run.ranks.get(origin.rank)
        if state is None or state.place is not origin.place:  # each origin has a place object of its own
            run.note_origin(
                origin.rank,
                place=origin.place,
                replica=origin.replica,
                world_size=origin.world_size,
                resource=origin.resource,
                now=now,
            )
        return run

    def _count(self, signal: str, counts: dict[str, int]) -> None:
        for kind, count in counts.items():
            if count:
                self._items_received[signal, kind].inc(count)


async def _report_of(record: LogRecord, rank: int, work: Work) -> RankReport | None:
    """Parse the report of a record, in a thread if it is long; None: it has none.

    Raises:
        ValueError: it is not a valid report, or it is another rank's.
    """
    if not record.event_name.startswith(REPORTS):
        return None
    body = record.body
    if len(body) > REPORT_ON_LOOP:
        given = await decode_in_thread(functools.partial(parse, body))
        await work.next()
    else:
        given = parse(body)
    if given.rank != rank:
        raise ValueError(f"report of rank {given.rank} under a resource of rank {rank}")
    return given


def _chunks(spans: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The spans in pieces of at most `CHUNK` and about `CHUNK_BYTES`."""
    for start in range(0, len(spans), CHUNK):
        some = spans[start : start + CHUNK]
        if sum(map(len, some)) <= CHUNK_BYTES:
            yield some
            continue
        piece: list[bytes] = []
        size = 0
        for span in some:
            piece.append(span)
            size += len(span)
            if size > CHUNK_BYTES:
                yield piece
                piece, size = [], 0
        if piece:
            yield piece
