"""Requests that are malformed, oversized, foreign, late or repeated; and healthy jobs, which cause nothing."""

from __future__ import annotations

import random

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, ResourceMetrics, ScopeMetrics
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from otel_fr import semconv
from otel_fr.control.v1 import control_pb2
from tests.support.collector_process import Collector
from tests.support.grpc_calls import LOGS, METRICS, TRACES, WATCH, refused
from tests.support.otlp_messages import attribute
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE

REJECTED = "otel_fr_collector_requests_rejected_total"
ITEMS = "otel_fr_collector_items_received_total"


def test_a_healthy_job_causes_nothing(collector: VirtualCollector) -> None:
    """Ranks ahead of others, spans in any order, groups of all kinds, uneven lists: all of these are legal."""
    order = random.Random(4711)
    with collector.job(4, "healthy") as job:
        pair = job.group("1", [1, 3], "pair")
        for step in range(60):
            job.step(pair, "broadcast", root=1)
            calls = [job.ranks[rank].issue(job.world) for rank in range(4)]
            uneven = [[[rank + 1]] for rank in range(4)]
            calls += [job.ranks[rank].issue(job.world, "all_to_all", sizes=uneven[0] * 4) for rank in range(4)]
            calls += [job.ranks[rank].issue(job.world, "barrier", sizes=[]) for rank in range(4)]
            send = job.ranks[0].issue(job.world, "send", kind="p2p", peer=2, tag=step % 3, pair_index=step // 3)
            recv = job.ranks[2].issue(job.world, "recv", kind="p2p", peer=0, tag=step % 3, pair_index=step // 3)
            spans = [(call.rank, job.ranks[call.rank].complete(call, send=False)) for call in [*calls, send, recv]]
            order.shuffle(spans)
            for number, span in spans:
                job.ranks[number].send_spans([span])
        job.all_reported()
        for rank in job.ranks:
            rank.exit(clean=True)
        assert collector.metric("otel_fr_progress_lag", job_id="healthy", process_group="default_pg") == 0
    assert [one for one in collector.incidents() if one["job"] == "healthy"] == []
    assert collector.metric("otel_fr_collector_pending_calls") == 0


def test_a_rank_ahead_of_the_others_is_no_fault(collector: VirtualCollector) -> None:
    with collector.job(2, "ahead") as job:
        for rank in job.ranks:
            with rank.lock:  # so that no report shows them in flight, even on a busy machine
                calls = [rank.issue(job.world, "broadcast", root=0) for _ in range(300)]
                spans = [rank.complete(call, send=False) for call in calls]
            for start in range(0, 300, 10):
                rank.send_spans(spans[start : start + 10])
            job.all_reported()
    assert [one for one in collector.incidents() if one["job"] == "ahead"] == []


def test_a_cancelled_job_is_no_fault(collector: VirtualCollector) -> None:
    with collector.job(2, "cancelled") as job:
        job.step()
        for rank in job.ranks:
            rank.issue(job.world)
        for rank in job.ranks:
            rank.exit(signal=15)
            job.all_reported()
        judged = collector.metric("otel_fr_collector_judgement_duration_seconds_count")
        assert collector.time.wait_for(
            lambda: collector.metric("otel_fr_collector_judgement_duration_seconds_count") > judged
        )
    assert [one for one in collector.incidents() if one["job"] == "cancelled"] == []


def test_spans_sent_twice_count_once(collector: VirtualCollector) -> None:
    before = collector.metric("otel_fr_collector_pending_calls")
    with collector.job(2, "twice") as job:
        spans = []
        for rank in job.ranks:
            call = rank.issue(job.world)
            spans.append((rank, rank.complete(call)))
        for rank, span in spans:
            rank.send_spans([span, span])
        job.all_reported()
        assert collector.metric("otel_fr_collector_pending_calls") == before


@pytest.mark.parametrize(("method", "signal"), [(TRACES, "traces"), (LOGS, "logs"), (METRICS, "metrics")])
def test_malformed_bytes_are_invalid_argument(shared: Collector, method: str, signal: str) -> None:
    before = shared.metric(REJECTED, signal=signal, reason="malformed")
    with pytest.raises(grpc.RpcError) as caught:
        shared.send(method, b"\xff\xff\xff not protobuf")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert shared.metric(REJECTED, signal=signal, reason="malformed") == before + 1


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_a_request_over_64_mib_is_resource_exhausted(shared: Collector, compression: grpc.Compression | None) -> None:
    before = shared.metric(REJECTED, signal="traces", reason="too_large")
    with pytest.raises(grpc.RpcError) as caught:
        shared.send(TRACES, bytes(64 * 1024 * 1024 + 1), compression=compression)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert shared.metric(REJECTED, signal="traces", reason="too_large") == before + 1
    assert shared.get("/healthz") == "ok\n"


def test_foreign_telemetry_passes_and_is_counted(shared: Collector) -> None:
    before = {signal: shared.metric(ITEMS, signal=signal, kind="other") for signal in ("traces", "logs", "metrics")}
    web = Resource(attributes=[attribute("service.name", "web")])
    spans = ResourceSpans(resource=web, scope_spans=[ScopeSpans(spans=[Span(name="GET /"), Span(name="SELECT")])])
    assert shared.send(TRACES, ExportTraceServiceRequest(resource_spans=[spans]).SerializeToString()) == b""
    record = LogRecord(body=AnyValue(string_value="hello"))
    logs = ResourceLogs(resource=web, scope_logs=[ScopeLogs(log_records=[record])])
    shared.send(LOGS, ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString())
    numbers = ResourceMetrics(resource=web, scope_metrics=[ScopeMetrics(metrics=[Metric(name="requests")])])
    shared.send(METRICS, ExportMetricsServiceRequest(resource_metrics=[numbers]).SerializeToString())
    grown = {signal: shared.metric(ITEMS, signal=signal, kind="other") - n for signal, n in before.items()}
    assert grown == {"traces": 2, "logs": 1, "metrics": 1}


def test_a_span_that_lacks_what_it_needs_is_a_warning(collector: VirtualCollector) -> None:
    with collector.job(2, "odd") as job:
        span = job.ranks[0].complete(job.ranks[0].issue(job.world), send=False)
        (number,) = (one for one in span.attributes if one.key == semconv.SEQUENCE_ID)
        span.attributes.remove(number)
        answer = ExportTraceServiceResponse.FromString(collector.send(TRACES, job.ranks[0].spans_request([span])))
    assert answer.partial_success.rejected_spans == 0
    assert "sequence id" in answer.partial_success.error_message


@pytest.mark.parametrize(
    "body",
    [
        "",
        "no json",
        "[" * 100_000,
        '{"v": 2, "rank": 0, "n": 1, "groups": []}',
        '{"v": 1, "rank": 0, "n": 1, "groups": [{"id": "a", "ranks": "0-99999999999"}]}',
        '{"v": 1, "rank": 5, "n": 1, "groups": []}',
        '{"v": 1, "rank": 0, "n": 1, "groups": 7}',
    ],
)
def test_an_unusable_report_is_counted_and_harmless(collector: VirtualCollector, body: str) -> None:
    before = collector.metric("otel_fr_collector_rank_reports_total", outcome="invalid")
    with collector.job(2, "unusable") as job:
        record = LogRecord(event_name="torch.rank.progress", body=AnyValue(string_value=body))
        logs = ResourceLogs(resource=job.ranks[0].resource(), scope_logs=[ScopeLogs(log_records=[record])])
        collector.send(LOGS, ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString())
    assert collector.metric("otel_fr_collector_rank_reports_total", outcome="invalid") == before + 1


def test_an_unusable_request_for_the_workload_is_no_report(collector: VirtualCollector) -> None:
    def invalid() -> tuple[float, float]:
        items = collector.metric(ITEMS, signal="logs", kind="invalid")
        return items, collector.metric("otel_fr_collector_rank_reports_total", outcome="invalid")

    items, reports = invalid()
    with collector.job(2, "unusable") as job:
        job.ranks[0].ask("restart")
    assert invalid() == (items + 1, reports)


@given(
    changes=st.lists(
        st.tuples(st.integers(0, 2_047), st.integers(0, 8), st.binary(max_size=12)), min_size=1, max_size=6
    ),
    method=st.sampled_from([TRACES, LOGS, METRICS]),
)
@example(changes=[(233, 0, bytes(4))], method=TRACES)  # lengths near the start of the span
@example(changes=[(233, 1, b"\x01")], method=LOGS)  # the fields of a log record cannot be counted
def test_a_corrupted_request_is_accepted_or_rejected_and_never_an_internal_error(
    collector: VirtualCollector, changes: list[tuple[int, int, bytes]], method: str
) -> None:
    """The request is a valid request with bytes changed, cut out or doubled."""
    with collector.job(1, "fuzz") as job:
        job.quiet()
        player = job.ranks[0]
        raw = bytearray(player.spans_request([player.complete(player.issue(job.world), send=False)]))
    for position, width, new in changes:
        start = position % (len(raw) + 1)
        raw[start : start + width] = new
    code = grpc.StatusCode.OK
    try:
        collector.send(method, bytes(raw))
    except grpc.RpcError as error:
        code = error.code()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
    assert collector.metric("otel_fr_collector_internal_errors_total", part="ingest") == 0


def test_texts_that_are_not_unicode_disturb_neither_verdicts_nor_metrics(collector: VirtualCollector) -> None:
    """A process group's description has a lone surrogate, which Python makes of a byte that is no UTF-8."""
    with collector.job(2, "odd-names") as job:
        group = job.group("1", [0, 1], "stage \udcff")
        job.skip(1, group)
        incident = collector.wait_cause()
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
        assert collector.metric("otel_fr_collector_internal_errors_total") == 0
        assert collector.metric("otel_fr_incidents_open", process_group="stage ?") == 1


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xff", b"\x0a" * 100])
def test_a_control_request_that_is_none_is_rejected(shared: Collector, data: bytes) -> None:
    before = shared.metric(REJECTED, signal="control", reason="malformed")
    assert refused(lambda: list(shared.stream(WATCH)(data, timeout=PATIENCE))) == grpc.StatusCode.INVALID_ARGUMENT
    assert shared.metric(REJECTED, signal="control", reason="malformed") == before + 1
    assert "Traceback" not in shared.err_file.read_text()


def test_a_control_stream_ends_when_what_the_monitor_says_later_is_no_request(shared: Collector) -> None:
    request = control_pb2.WatchRequest(job_id="job", run_id="r", others=[1]).SerializeToString()
    watch = shared.channel.stream_stream(WATCH, None, None)
    good = watch(iter([request] * 3))
    good.initial_metadata()
    assert list(watch(iter([request, b"\xff"]), timeout=PATIENCE)) == []
    assert good.is_active()
    good.cancel()  # type: ignore[no-untyped-call]


def test_a_report_that_comes_late_is_dropped(collector: VirtualCollector) -> None:
    with collector.job(2, "late") as job:
        job.all_reported()
        before = collector.metric("otel_fr_collector_rank_reports_total", outcome="late")
        job.ranks[0].send_report(n=1)
        assert collector.metric("otel_fr_collector_rank_reports_total", outcome="late") == before + 1
