"""The number of fields of a request, counted before it is decoded."""

from __future__ import annotations

import asyncio
import time

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from otel_fr_collector.jobs import origins
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp import log_records, wire
from otel_fr_collector.otlp.log_records import read_record
from otel_fr_collector.otlp.partial import parse_request
from otel_fr_collector.otlp.signals import LOGS, METRICS, TRACES, MalformedError
from otel_fr_collector.otlp.wire import TooManyError, check_request, find_fields
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service

from otel_fr import semconv
from tests.support.otlp_messages import attribute, field

spans = st.lists(st.builds(lambda name: Span(name=name), st.text(max_size=200)), max_size=4)
scopes = st.lists(st.builds(lambda own: ScopeSpans(spans=own, schema_url="u"), spans), max_size=3)
resources = st.lists(st.builds(lambda own: ResourceSpans(scope_spans=own), scopes), max_size=3)


@given(resources, st.integers(0, 40))
def test_resources_and_scopes_are_counted_as_they_are_decoded(sent: list[ResourceSpans], most: int) -> None:
    data = ExportTraceServiceRequest(resource_spans=sent).SerializeToString()
    containers = len(sent) + sum(len(one.scope_spans) for one in sent)
    items = max((len(scope.spans) + 1 for one in sent for scope in one.scope_spans), default=0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wire, "MAX_CONTAINERS", most)
        for count_from in (0, len(data) + 1):  # before it is decoded, and after that
            patched.setattr(wire, "COUNT_FROM", count_from)
            try:
                parse_request(data)
            except TooManyError:
                assert containers > most
            else:
                assert containers <= most
        patched.setattr(wire, "COUNT_FROM", 0)
        patched.setattr(wire, "MAX_CONTAINERS", 1_000)
        patched.setattr(wire, "MAX_ITEMS", max(0, items - 1))
        if items:
            with pytest.raises(TooManyError):
                check_request(data)


@given(st.binary(max_size=40))
def test_what_is_counted_is_what_is_decoded(data: bytes) -> None:
    """Bytes whose fields can be counted are decoded or rejected as malformed; others are rejected."""
    try:
        count, found = find_fields(data, 1 << 3 | 2, 1_000)
    except (MalformedError, TooManyError):
        return
    assert len(found) <= count <= len(data)
    try:
        entries = parse_request(data).entries
    except MalformedError:
        return
    assert len(entries) == len(found)


SLOWEST = 1.5
"""Seconds of processor time; 0.1 on an idle machine."""


def take(signal: str, data: bytes) -> tuple[Service, float]:
    """A service that was sent the request, and the longest time for which other tasks had to wait, in seconds."""
    longest = 0.0

    async def play() -> Service:
        nonlocal longest
        service = Service(metrics := Metrics(), Outlets(metrics))
        task = asyncio.ensure_future(service.take(signal, data))
        while not task.done():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)
        await task
        return service

    return asyncio.run(play()), longest


def empty_parts(level: int, count: int) -> bytes:
    """A request of so many empty resources (0), scopes (1) or items (2)."""
    if level == 0:
        return b"\x0a\x00" * count
    parts = b"\x12\x00" * count
    return field(1, parts if level == 1 else field(2, parts))


@pytest.mark.parametrize("signal", [TRACES, LOGS, METRICS])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_request_of_more_empty_parts_than_are_taken_is_rejected_before_it_is_decoded(signal: str, level: int) -> None:
    with pytest.raises(TooManyError):
        take(signal, empty_parts(level, wire.MAX_ITEMS + 1))


@pytest.mark.parametrize("signal", [TRACES, LOGS, METRICS])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_other_tasks_run_while_a_request_of_many_parts_is_taken(signal: str, level: int) -> None:
    _, longest = take(signal, empty_parts(level, wire.MAX_CONTAINERS - 3))
    assert longest < SLOWEST


def rank_request(span: bytes, resource: list[KeyValue]) -> bytes:
    of_rank = Resource(attributes=[attribute(semconv.RANK, 0), *resource]).SerializeToString()
    return field(1, field(1, of_rank) + field(2, field(2, span)))


def invalid(service: Service) -> float:
    return sum(
        sample.value
        for family in service.metrics.items_received.collect()
        for sample in family.samples
        if sample.labels.get("kind") == "invalid" and sample.name.endswith("_total")
    )


CALL = Span(attributes=[attribute(semconv.GROUP_ID, "g")]).SerializeToString()
EMPTY = b"\x4a\x00"
"""An attribute of a span."""


@pytest.mark.parametrize(
    ("signal", "item", "resource"),
    [
        (TRACES, CALL + EMPTY * 100_000, []),
        (TRACES, CALL + bytes(300_000), []),
        (TRACES, CALL, [KeyValue() for _ in range(origins.MAX_ATTRIBUTES)]),
        (TRACES, CALL, [attribute("x", "y" * origins.MAX_RESOURCE)]),
        (LOGS, b"\x32\x00" * (log_records.MAX_FIELDS + 1), []),
        (LOGS, bytes(log_records.MAX_RECORD + 1), []),
    ],
    ids=["attributes", "no field", "resource", "long resource", "fields of a log record", "long log record"],
)
def test_a_resource_a_span_or_a_log_record_of_too_many_attributes_is_invalid(
    signal: str, item: bytes, resource: list[KeyValue]
) -> None:
    service, longest = take(signal, rank_request(item, resource))
    assert (invalid(service), longest < SLOWEST) == (1, True)


texts = st.text(max_size=5)
pairs = st.builds(lambda key, text: attribute(key, text), st.sampled_from(["event.name", "file.path", "x"]), texts)
records = st.builds(
    lambda name, body, attributes: LogRecord(
        event_name=name, body=AnyValue(string_value=body), attributes=attributes, severity_text="INFO", flags=1
    ),
    texts, texts, st.lists(pairs, max_size=4),
)  # fmt: skip


@given(records, st.binary(max_size=3))
def test_a_log_record_says_what_it_says_decoded_as_a_whole(record: LogRecord, more: bytes) -> None:
    data = record.SerializeToString() + more
    try:
        found = read_record(data)
    except ValueError:
        with pytest.raises(DecodeError):
            LogRecord.FromString(data)
        return
    named = next((item.value.string_value for item in record.attributes if item.key == "event.name"), "")
    if not more:
        assert (found.event_name, found.body) == (record.event_name or named, record.body.string_value)
        paths = [item.value.string_value for item in record.attributes if item.key == semconv.FILE_PATH]
        assert found.text(semconv.FILE_PATH) == (paths[0] if paths else "")
