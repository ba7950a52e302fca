"""OTLP requests: decoded, counted, and added to their runs. No input raises anything but `MalformedError`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from otel_fr import semconv as names
from otel_fr_collector.jobs.calls import Interner
from otel_fr_collector.jobs.rank_reports import parse_report
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.span_reader import Origin, Origins, SpanReader, find_text, read_origin
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.partial import parse_trace_request
from otel_fr_collector.otlp.signals import LOGS, METRICS, TRACES, MalformedError

CHUNK = 500
"""Spans read before the event loop runs other tasks; a request of 64 MiB contains 250,000."""

CHUNK_REPORTS = 16


class Ingest:
    """Takes requests of the three signals.

    Args:
        clock, wall: monotonic and Unix time in seconds.
    """

    def __init__(
        self,
        runs: Runs,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._runs = runs
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._interner = Interner()
        self._spans = SpanReader(self._interner)
        self._origins = Origins()

    async def take(self, signal: str, data: bytes) -> bytes:
        """Take one request; returns the response's bytes.

        Raises:
            MalformedError: nothing of the request was taken.
        """
        takers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            TRACES: self._traces,
            LOGS: self._logs,
            METRICS: self._measurements,
        }
        try:
            response = await takers[signal](data)
        except DecodeError as error:
            raise MalformedError(f"the request is not an OTLP {signal} message") from error
        return response

    async def _traces(self, data: bytes) -> bytes:
        request = parse_trace_request(data)
        counts = {"otel_fr": 0, "other": 0, "invalid": 0}
        invalid: list[str] = []
        for resource_spans in request.resource_spans:
            try:
                origin = self._origins.read(resource_spans.resource)
            except DecodeError:
                counts["invalid"] += sum(len(scope.spans) for scope in resource_spans.scope_spans)
                invalid = ["a resource cannot be decoded"]
                continue
            for scope_spans in resource_spans.scope_spans:
                spans = scope_spans.spans
                if origin is None:
                    counts["other"] += len(spans)
                    continue
                for start in range(0, len(spans), CHUNK):
                    if start:
                        await asyncio.sleep(0)
                    some = spans[start : start + CHUNK]
                    before = len(invalid)
                    calls = self._spans.read(some, invalid)
                    counts["otel_fr"] += len(calls)
                    counts["invalid"] += len(invalid) - before
                    counts["other"] += len(some) - len(calls) - len(invalid) + before
                    del invalid[1:-1]
                    run = self._run(origin)
                    if run is not None:
                        run.add_spans(origin.rank, calls, self._clock())
        self._count(TRACES, counts)
        self._runs.trim(counts["otel_fr"])
        response = ExportTraceServiceResponse()
        if invalid:  # a warning as OTLP defines it: nothing was rejected, so nothing must be sent again
            response.partial_success.error_message = invalid[-1]
        return response.SerializeToString()

    async def _logs(self, data: bytes) -> bytes:
        request = ExportLogsServiceRequest.FromString(data)
        counts = {"otel_fr": 0, "other": 0, "invalid": 0}
        problem = ""
        done = 0
        for resource_logs in request.resource_logs:
            origin = read_origin(resource_logs.resource)
            for scope_logs in resource_logs.scope_logs:
                for record in scope_logs.log_records:
                    event = record.event_name or find_text(record.attributes, "event.name")
                    if origin is None or not event.startswith("torch."):
                        counts["other"] += 1
                        continue
                    try:
                        self._event(origin, record, event)
                        counts["otel_fr"] += 1
                    except ValueError as error:
                        counts["invalid"] += 1
                        self._metrics.rank_reports.labels("invalid").inc()
                        problem = str(error)[:200]
                    done += 1
                    if done % CHUNK_REPORTS == 0:
                        await asyncio.sleep(0)
        self._count(LOGS, counts)
        response = ExportLogsServiceResponse()
        if problem:
            response.partial_success.error_message = problem
        return response.SerializeToString()

    async def _measurements(self, data: bytes) -> bytes:
        request = ExportMetricsServiceRequest.FromString(data)
        count = sum(len(s.metrics) for r in request.resource_metrics for s in r.scope_metrics)
        self._count(METRICS, {"other": count})
        return ExportMetricsServiceResponse().SerializeToString()

    def _event(self, origin: Origin, record: LogRecord, event: str) -> None:
        now = self._clock()
        report = parse_report(record.body.string_value, self._interner, now=now, wall=self._wall())
        if report.rank != origin.rank:
            raise ValueError(f"report of rank {report.rank} under a resource of rank {origin.rank}")
        report.file = report.file or find_text(record.attributes, names.FILE_PATH)
        if event == names.EVENT_DUMP_FAILED:
            report.file = ""
        run = self._run(origin)
        if run is None:
            return
        held = len(report.inflight) + len(report.failed) + 1
        taken = run.add_report(report, now)
        self._runs.trim(held)
        self._metrics.rank_reports.labels("accepted" if taken else "late").inc()
        if not taken:
            run.note_file(origin.rank, report.file)

    def _run(self, origin: Origin) -> Run | None:
        """The run of an origin; None: there is no room for it."""
        run = self._runs.get(origin.run, self._clock())
        if run is None:
            return None
        run.note_origin(
            origin.rank,
            host=origin.host,
            world_size=origin.world_size,
            resource=origin.resource,
            now=self._clock(),
        )
        return run

    def _count(self, signal: str, counts: dict[str, int]) -> None:
        for kind, count in counts.items():
            if count:
                self._metrics.items_received.labels(signal, kind).inc(count)
