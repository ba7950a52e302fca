"""Sends queued telemetry in threads: an exporter blocks for up to ten seconds if an endpoint does not answer."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

from otel_fr.config import SpanBatching
from otel_fr.monitor.telemetry.queues import MetricsQueue, QueuedReport, ReportQueue, SpanQueue
from otel_fr.monitor.telemetry.span_builder import SCOPE
from otel_fr.otlp_sender import Request, Sender

_log = logging.getLogger("otel_fr.monitor.telemetry.export")

RETRY_SECONDS = 0.5
"""Pause after a failure: some failures are immediate, and must not be retried in a tight loop."""
GATHER_SECONDS = 0.1
"""How long a progress report waits for the reports of the machine's other ranks. They are sent in one request, because
a request costs a collector some ten times as much as a report in it."""
END_SECONDS = 5.0
"""How long the monitor sends what is queued after its rank has ended."""
FAILED_SECONDS = 30.0
"""The same if the rank did not end cleanly, for reports, and for signals that the endpoint has accepted before. A
collector that restarts, or is stopped for a moment, while a job fails then still receives them."""
_LOOK_SECONDS = 0.02
_REPORT_TRIES = 3
_SLOW_SECONDS = 2.0
"""A request that takes longer counts as trouble with the endpoint."""


_Q = TypeVar("_Q", SpanQueue, ReportQueue, MetricsQueue)


class _Worker(Generic[_Q]):
    """A daemon thread that sends the items of a queue."""

    def __init__(self, name: str, sender: Sender, queue: _Q, wait_s: float = 0.0, batch: int = 1) -> None:
        """``wait_s``: how long queued items wait for more, until there are ``batch`` items."""
        self._sender = sender
        self._queue: _Q = queue
        self._wait_s = wait_s
        self._batch = batch
        self._wake = threading.Condition()
        self._hurry = False
        self._busy_since: float | None = None
        self.name = name
        self.failing = False
        self.has_sent = False

    def start(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def pending(self) -> bool:
        """Return True while something is queued or being sent."""
        with self._wake:
            return self._busy_since is not None or len(self._queue) > 0

    def in_trouble(self) -> bool:
        since = self._busy_since
        return self.failing or (since is not None and time.monotonic() - since > _SLOW_SECONDS)

    def notify(self, hurry: bool = False) -> None:
        with self._wake:
            self._hurry = self._hurry or hurry
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not len(self._queue):
                    self._hurry = False
                    self._wake.wait()
                    continue
                # Each put notifies, but only a full batch or `hurry` ends the wait for more.
                self._wake.wait_for(lambda: self._hurry or self._is_full(), self._wait_s)
                self._busy_since = time.monotonic()
            try:
                self.failing = not self._send_batch()
                self.has_sent = self.has_sent or not self.failing
            except Exception as error:  # noqa: BLE001 - whatever an exporter raises, the thread continues
                self.failing = True
                _log.warning("sending failed: %s: %s", type(error).__name__, error)
            finally:
                self._busy_since = None
            if self.failing:
                time.sleep(RETRY_SECONDS)

    def _is_full(self) -> bool:
        return len(self._queue) >= self._batch

    def _send_batch(self) -> bool:
        raise NotImplementedError


class _SpanWorker(_Worker[SpanQueue]):
    def __init__(self, sender: Sender, queue: SpanQueue) -> None:
        super().__init__("otel-fr-spans", sender, queue, queue.batching.delay, queue.batching.batch_size)

    def _send_batch(self) -> bool:
        count, chunks, resource = self._queue.take()
        if not count:
            return not self.failing
        sent = False
        try:
            sent = self._sender.send(spans_request(resource, chunks), count)
        finally:
            if not sent:
                self._queue.dropped += count
        return sent


class _ReportWorker(_Worker[ReportQueue]):
    """
    Attributes:
        pass_on: passes a serialised request to another monitor of this machine. Returns False if that does not send it.
        others: returns for how many other monitors this one sends progress reports.
    """

    def __init__(self, sender: Sender, queue: ReportQueue) -> None:
        super().__init__("otel-fr-reports", sender, queue, GATHER_SECONDS)
        self.pass_on: Callable[[bytes], bool] = lambda _: False
        self.others: Callable[[], int] = lambda: 0

    def _is_full(self) -> bool:
        return not self._queue.can_wait or len(self._queue) > self.others()

    def _send_batch(self) -> bool:
        reports = self._queue.take()
        if not reports:
            return not self.failing
        request = reports_request(reports)
        if all(report.progress for report in reports) and self.pass_on(request.SerializeToString()):
            return True
        sent = False
        try:
            sent = self._sender.send(request, len(reports))
        finally:
            if not sent:
                self._retry(reports)
        return sent

    def _retry(self, reports: list[QueuedReport]) -> None:
        """Queue events again, but not progress reports: the next one supersedes them."""
        again: list[QueuedReport] = []
        for report in reports:
            report.tries += 1
            if not report.progress and report.tries < _REPORT_TRIES:
                again.append(report)
            else:
                self._queue.dropped += 1
        self._queue.put_back(again)


class _MetricsWorker(_Worker[MetricsQueue]):
    """Sends metrics. ``is_refused``: True if the endpoint does not accept metrics. No more are sent then."""

    def __init__(self, sender: Sender, queue: MetricsQueue) -> None:
        super().__init__("otel-fr-metrics", sender, queue)
        self._tries = 0
        self.is_refused = False

    def _send_batch(self) -> bool:
        found = self._queue.take()
        if found is None or self.is_refused:
            return True
        sent = False
        try:
            sent = self._sender.send(found[1], 1)
        finally:
            self._tries = 0 if sent else self._tries + 1
            if self.is_refused:
                self._queue.clear()
            elif not sent and self._tries % _REPORT_TRIES:
                self._queue.put_back(*found)
        return sent or self.is_refused


def spans_request(resource: Resource, chunks: list[bytes]) -> Request:
    """Build one request from serialised `ScopeSpans` without scopes."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add(resource=resource)
    of_scope: ScopeSpans = of_resource.scope_spans.add(scope=SCOPE)
    for chunk in chunks:
        of_scope.MergeFromString(chunk)
    return request


def reports_request(reports: list[QueuedReport]) -> ExportLogsServiceRequest:
    """Build one request. Successive reports with the same resource are grouped under it."""
    request = ExportLogsServiceRequest()
    for _, same in itertools.groupby(reports, lambda report: id(report.resource)):
        own = list(same)
        of_scope = request.resource_logs.add(resource=own[0].resource).scope_logs.add(scope=SCOPE)
        of_scope.log_records.extend(report.record for report in own)
    return request


class Exporter:
    """The queues for spans, reports and metrics, and the threads that send them. Nothing here blocks.

    Args:
        spans, reports, metrics: senders; None: this signal is not sent, and nothing counts as dropped.
        batching: how spans are batched.
    """

    def __init__(
        self,
        spans: Sender | None,
        reports: Sender | None,
        metrics: Sender | None = None,
        batching: SpanBatching | None = None,
    ) -> None:
        self.spans = SpanQueue(batching)
        self.reports = ReportQueue()
        self.metrics = MetricsQueue()
        self._span_worker = None if spans is None else _SpanWorker(spans, self.spans)
        self._report_worker = None if reports is None else _ReportWorker(reports, self.reports)
        self._metrics_worker = None if metrics is None else _MetricsWorker(metrics, self.metrics)
        workers = (self._span_worker, self._report_worker, self._metrics_worker)
        self._workers: list[_Worker[Any]] = [worker for worker in workers if worker is not None]

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def put_spans(self, count: int, chunk: bytes, resource: Resource) -> None:
        """Queue ``count`` serialised entries of ``ScopeSpans.spans``, at most a batch."""
        if self._span_worker is not None and self.spans.put(count, chunk, resource):
            self._span_worker.notify()

    def put_report(self, record: LogRecord, resource: Resource, progress: bool) -> None:
        if self._report_worker is not None:
            self.reports.put(QueuedReport(record, record.ByteSize(), progress, resource))
            self._report_worker.notify()

    def share(self, pass_on: Callable[[bytes], bool], others: Callable[[], int]) -> None:
        """Send the progress reports of all ranks of this machine in one request; see `_ReportWorker`."""
        if self._report_worker is not None:
            self._report_worker.pass_on, self._report_worker.others = pass_on, others

    def put_passed(self, data: bytes) -> None:
        """Queue another monitor's progress reports. Raises ValueError if ``data`` is no request of reports."""
        try:
            request = ExportLogsServiceRequest.FromString(data)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        for of_resource in request.resource_logs:
            for of_scope in of_resource.scope_logs:
                for record in of_scope.log_records:
                    self.put_report(record, of_resource.resource, progress=True)

    def put_metrics(self, request: ExportMetricsServiceRequest, resource: Resource) -> None:
        if self._metrics_worker is not None and not self._metrics_worker.is_refused:
            self.metrics.put(resource, request)
            self._metrics_worker.notify()

    @property
    def wants_spans(self) -> bool:
        return self._span_worker is not None

    @property
    def batch_size(self) -> int:
        """Most spans in one chunk."""
        return self.spans.batching.batch_size

    @property
    def wants_metrics(self) -> bool:
        return self._metrics_worker is not None and not self._metrics_worker.is_refused

    def note_trouble(self, thread: str, is_refused: bool) -> bool:
        """Note that the exporter in this thread has logged that it cannot reach its endpoint. It keeps trying.

        ``is_refused``: the server there does not accept this signal. For metrics, this returns True then: it is no
        fault, because backends for traces accept no metrics.
        """
        for worker in self._workers:
            if worker.name == thread:
                worker.failing = True
        metrics = self._metrics_worker
        # A proxy in front of an endpoint that restarts may also say so, but the endpoint has accepted metrics before.
        if is_refused and metrics is not None and metrics.name == thread and not metrics.has_sent:
            metrics.is_refused = True
            metrics.failing = False
            return True
        return False

    def pending(self, patient: bool, *, answered: bool = False) -> bool:
        """Return True while something must still be sent.

        Args:
            patient: if False, ignore endpoints in trouble.
            answered: if True, ignore endpoints that have not yet accepted any spans or metrics.
        """
        workers = [one for one in self._workers if one.has_sent or one is self._report_worker or not answered]
        return any(worker.pending() and (patient or not worker.in_trouble()) for worker in workers)

    def hurry(self) -> None:
        """Send all queued items without waiting for more."""
        for worker in self._workers:
            worker.notify(hurry=True)

    def finish(self, ended: float, clean: bool) -> None:
        """Send what is queued, and wait for that until `END_SECONDS` or `FAILED_SECONDS` after the rank's end.

        Args:
            ended: when the rank ended, in monotonic seconds.
            clean: True if the rank ended cleanly.
        """
        self.hurry()
        while self.pending(patient=not clean) and time.monotonic() < ended + END_SECONDS:
            time.sleep(_LOOK_SECONDS)
        while not clean and self.pending(patient=True, answered=True) and time.monotonic() <= ended + FAILED_SECONDS:
            time.sleep(_LOOK_SECONDS)
