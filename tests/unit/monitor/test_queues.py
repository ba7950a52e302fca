"""What happens to spans and reports while an endpoint does not take them."""

from __future__ import annotations

import os
import threading
from typing import Any, cast

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from otel_fr.config import SpanBatching
from otel_fr.monitor.telemetry import export
from otel_fr.monitor.telemetry.export import Exporter, reports_request
from otel_fr.monitor.telemetry.queues import (
    MAX_METRICS,
    MAX_REPORTS,
    MAX_SPAN_BYTES,
    MetricsQueue,
    QueuedReport,
    ReportQueue,
    SpanQueue,
)
from otel_fr.otlp_sender import Sender
from tests.support.waiting import PATIENCE, until

RESOURCE = Resource()
BATCH_SPANS, MAX_SPANS = SpanBatching().batch_size, SpanBatching().queue_size


def chunk(count: int, size: int = 10) -> bytes:
    return ScopeSpans(spans=[Span(name="x" * size)] * count).SerializeToString()


def report(number: int, progress: bool) -> QueuedReport:
    return QueuedReport(LogRecord(time_unix_nano=number), 100, progress, RESOURCE)


def numbers(reports: list[QueuedReport]) -> list[int]:
    return [item.record.time_unix_nano for item in reports]


def test_the_oldest_spans_are_dropped_first_and_counted() -> None:
    queue = SpanQueue()
    for _ in range(MAX_SPANS // 1000 + 3):
        queue.put(1000, chunk(1000), RESOURCE)
    assert len(queue) == MAX_SPANS
    assert queue.dropped == 3000


def test_spans_are_bounded_in_bytes_too() -> None:
    queue = SpanQueue()
    for _ in range(20):
        queue.put(1, os.urandom(MAX_SPAN_BYTES // 10), RESOURCE)
    assert len(queue) == 10
    assert queue.dropped == 10


def test_a_backlog_comes_out_as_it_was_put_in_and_in_order() -> None:
    queue = SpanQueue()
    chunks = [chunk(500, size=number) for number in range(1, 20)]
    for one in chunks:
        queue.put(500, one, RESOURCE)
    found: list[bytes] = []
    while queue:
        found += queue.take()[1]
    assert found == chunks
    assert queue.dropped == 0


def test_a_batch_is_bounded() -> None:
    queue = SpanQueue()
    for _ in range(5):
        queue.put(200, chunk(200), RESOURCE)
    assert [queue.take()[0] for _ in range(3)] == [400, 400, 200]
    assert queue.take()[:2] == (0, [])


def test_spans_and_reports_stay_with_their_resource() -> None:
    """A process may become a rank of another run: what it sent before belongs to its earlier rank."""
    other = Resource(dropped_attributes_count=7)
    spans, reports = SpanQueue(), ReportQueue()
    for resource in (RESOURCE, RESOURCE, other):
        spans.put(1, chunk(1), resource)
        reports.put(QueuedReport(LogRecord(), 100, False, resource))
    taken = [spans.take() for _ in range(3)]
    assert [count for count, _, _ in taken] == [2, 1, 0]
    assert taken[1][2] is other
    request = reports_request(reports.take())
    assert [(one.resource, len(one.scope_logs[0].log_records)) for one in request.resource_logs] == [
        (RESOURCE, 2),
        (other, 1),
    ]


def test_superseded_progress_reports_are_dropped_before_events() -> None:
    queue = ReportQueue()
    queue.put(report(0, progress=False))
    for number in range(1, MAX_REPORTS + 10):
        queue.put(report(number, progress=number % 2 == 1))
    kept = numbers(queue.take())
    assert len(kept) == MAX_REPORTS
    assert queue.dropped == 10
    assert [number for number in range(20) if number not in kept] == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]


def test_the_newest_progress_report_survives_a_queue_full_of_events() -> None:
    queue = ReportQueue()
    for number in range(MAX_REPORTS):
        queue.put(report(number, progress=False))
    queue.put(report(999, progress=True))
    kept = numbers(queue.take())
    assert kept[-1] == 999
    assert kept[0] == 1


class FakeSender:
    """Stands for an exporter: takes what it is sent unless ``answers`` says otherwise, and may be made to hang."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.sent: list[Any] = []
        self.hang = threading.Event()
        self.hang.set()
        self.tried = threading.Semaphore(0)

    def send(self, request: Any, count: int) -> bool:
        self.tried.release()
        self.hang.wait(PATIENCE)
        taken = self.answers.pop(0) if self.answers else True
        if taken:
            self.sent.append(request)
        return taken


def make(
    spans: FakeSender | None = None,
    reports: FakeSender | None = None,
    metrics: FakeSender | None = None,
    batching: SpanBatching | None = None,
) -> Exporter:
    """An exporter that is not started yet."""
    senders = [cast("Sender | None", one) for one in (spans, reports, metrics)]
    return Exporter(senders[0], senders[1], senders[2], batching)


def started(spans: FakeSender | None = None, reports: FakeSender | None = None) -> Exporter:
    exporter = make(spans, reports)
    exporter.start()
    return exporter


def put(exporter: Exporter, *events: str) -> None:
    """Reports; those of progress begin with that."""
    for event in events:
        exporter.put_report(LogRecord(event_name=event), RESOURCE, progress=event.startswith("progress"))


def names(sender: FakeSender) -> list[str]:
    return [record.event_name for r in sender.sent for record in r.resource_logs[0].scope_logs[0].log_records]


def test_an_event_is_tried_again_and_superseded_progress_is_not() -> None:
    sender = FakeSender(False, False)
    sender.hang.clear()
    exporter = started(reports=sender)
    put(exporter, "progress 1")
    assert sender.tried.acquire(timeout=PATIENCE)
    put(exporter, "exited", "progress 2")
    sender.hang.set()
    until(lambda: not exporter.pending(patient=True))
    assert names(sender) == ["exited"]
    assert exporter.reports.dropped == 2


def test_another_monitor_sends_the_progress_but_no_events_and_nothing_once_it_is_gone() -> None:
    sender, other = FakeSender(), FakeSender()  # the other monitor, until it refuses
    exporter = make(reports=sender)
    exporter.share(lambda request: other.send(request, 1), lambda: 0)
    exporter.start()

    def sent(name: str) -> None:
        put(exporter, name)
        until(lambda: not exporter.pending(patient=True))

    sent("progress 1")
    assert (len(other.sent), sender.sent) == (1, [])
    sent("stalled")
    assert (len(other.sent), names(sender)) == (1, ["stalled"])
    other.answers = [False]
    sent("progress 2")
    assert names(sender) == ["stalled", "progress 2"]


def test_an_event_that_comes_last_of_all_is_not_passed_on_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another monitor would drop it if the collector does not take it."""
    sender, other = FakeSender(), FakeSender()
    exporter = make(reports=sender)
    exporter.share(lambda request: other.send(request, 1), lambda: 0)
    take = exporter.reports.take

    def take_late() -> list[QueuedReport]:
        put(exporter, "exited")
        monkeypatch.undo()
        return take()

    monkeypatch.setattr(exporter.reports, "take", take_late)
    put(exporter, "progress 1")
    exporter.start()
    until(lambda: not exporter.pending(patient=True))
    assert (names(sender), other.sent) == (["progress 1", "exited"], [])


def test_progress_waits_for_that_of_other_monitors_and_is_sent_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "GATHER_SECONDS", 10 * PATIENCE)
    sender = FakeSender()
    exporter = make(reports=sender)
    exporter.share(lambda _: False, lambda: 2)
    exporter.start()
    others = [
        reports_request([QueuedReport(LogRecord(event_name=f"progress {rank}"), 0, True, Resource())])
        for rank in (1, 2)
    ]
    put(exporter, "progress 0")
    exporter.put_passed(others[0].SerializeToString())
    assert sender.sent == [], "the third one is waited for"
    exporter.put_passed(others[1].SerializeToString())
    until(lambda: bool(sender.sent))
    assert [len(one.resource_logs) for one in sender.sent] == [3]
    put(exporter, "progress 0", "stalled")
    until(lambda: not exporter.pending(patient=True))
    assert len(sender.sent) == 2, "an event does not wait"


def test_what_is_no_request_of_reports_is_not_sent_for_another_monitor() -> None:
    exporter = started(reports=FakeSender())
    with pytest.raises(ValueError, match="Error parsing"):
        exporter.put_passed(b"\xff\xff")
    assert not exporter.pending(patient=True)


def test_an_event_that_is_refused_again_and_again_is_given_up() -> None:
    sender = FakeSender(*[False] * 3)
    exporter = started(reports=sender)
    put(exporter, "exited")
    until(lambda: exporter.reports.dropped == 1)
    until(lambda: not exporter.pending(patient=True))
    assert sender.sent == []


def test_putting_never_waits_for_a_hanging_endpoint() -> None:
    sender = FakeSender()
    sender.hang.clear()
    exporter = started(sender)
    exporter.put_spans(BATCH_SPANS, chunk(BATCH_SPANS), RESOURCE)
    assert sender.tried.acquire(timeout=PATIENCE)
    for _ in range(100):
        exporter.put_spans(1000, chunk(1000), RESOURCE)
    assert sender.sent == [], "the endpoint still hangs"
    assert exporter.spans.dropped == 100_000 - MAX_SPANS
    sender.hang.set()


def test_only_the_endpoint_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "RETRY_SECONDS", PATIENCE)  # a second span that is tried would be dropped, too
    monkeypatch.setattr(export, "_SLOW_SECONDS", PATIENCE)
    spans, reports = FakeSender(*[False] * 100), FakeSender()
    exporter = started(spans, reports)
    exporter.put_spans(BATCH_SPANS, chunk(BATCH_SPANS), RESOURCE)
    until(lambda: exporter.spans.dropped == BATCH_SPANS)
    reports.hang.clear()
    exporter.put_spans(1, chunk(1), RESOURCE)
    put(exporter, "exited")
    assert reports.tried.acquire(timeout=PATIENCE)
    assert exporter.pending(patient=False)
    reports.hang.set()
    until(lambda: not exporter.pending(patient=False))
    assert exporter.pending(patient=True)
    assert not exporter.pending(patient=True, answered=True), "that endpoint has never answered"


def test_reports_are_waited_for_though_their_endpoint_has_never_answered() -> None:
    reports = FakeSender()
    reports.hang.clear()
    exporter = started(reports=reports)
    put(exporter, "exited")
    assert exporter.pending(patient=True, answered=True)
    reports.hang.set()


def test_haste_ends_the_wait_for_a_full_batch() -> None:
    sender = FakeSender()
    exporter = make(sender, batching=SpanBatching(delay=10 * PATIENCE))
    exporter.start()
    exporter.put_spans(3, chunk(3), RESOURCE)
    exporter.hurry()
    assert sender.tried.acquire(timeout=PATIENCE)
    until(lambda: not exporter.pending(patient=True))
    assert len(sender.sent[0].resource_spans[0].scope_spans[0].spans) == 3


def counted(count: int) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="calls")
    metric.sum.data_points.add(as_int=count)
    return request


def sent_counts(sender: FakeSender) -> list[int]:
    return [one.resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points[0].as_int for one in sender.sent]


def test_newer_numbers_replace_those_that_wait_and_each_run_has_its_own() -> None:
    queue, other = MetricsQueue(), Resource()
    first, second = counted(1), counted(2)
    queue.put(RESOURCE, first)
    queue.put(other, first)
    queue.put(RESOURCE, second)
    assert len(queue) == 2
    taken = [queue.take(), queue.take()]
    assert [(one[0] is other, one[1]) for one in taken if one] == [(True, first), (False, second)]
    queue.put(RESOURCE, second)
    queue.put_back(RESOURCE, first)  # it could not be sent, and a newer one waits
    found = queue.take()
    assert found is not None
    assert found[1] is second
    for _ in range(2 * MAX_METRICS):
        queue.put(Resource(), first)
    assert len(queue) == MAX_METRICS


def test_numbers_that_could_not_be_sent_are_sent_again() -> None:
    sender = FakeSender(False, False)
    exporter = make(metrics=sender)
    exporter.start()
    exporter.put_metrics(counted(7), RESOURCE)
    until(lambda: bool(sender.sent))
    assert sent_counts(sender) == [7]


def test_an_endpoint_that_has_taken_metrics_before_is_sent_more_whatever_a_proxy_says() -> None:
    sender = FakeSender()
    exporter = make(metrics=sender)
    exporter.start()
    for count in (7, 8):
        exporter.put_metrics(counted(count), RESOURCE)
        until(lambda: not exporter.pending(patient=True))
        assert not exporter.note_trouble("otel-fr-metrics", True)
    assert sent_counts(sender) == [7, 8]


def test_an_endpoint_that_takes_no_metrics_is_sent_none_and_nothing_is_said() -> None:
    sender = FakeSender(False, False, False)
    exporter = make(metrics=sender)
    assert not exporter.note_trouble("otel-fr-metrics", False)
    assert exporter.note_trouble("otel-fr-metrics", True)
    assert not exporter.note_trouble("otel-fr-reports", True)
    assert not exporter.wants_metrics
    exporter.put_metrics(counted(7), RESOURCE)
    assert not exporter.pending(patient=True)
