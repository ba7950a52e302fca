"""Writes and reads attributes, and makes requests: of a rank, and of other software's spans."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from otel_fr import semconv


def attribute(key: str, value: Any) -> KeyValue:
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    if isinstance(value, list):
        return KeyValue(
            key=key, value=AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=v) for v in value]))
        )
    return KeyValue(key=key, value=AnyValue(string_value=value))


def resource_of(values: Mapping[str, Any]) -> Resource:
    return Resource(attributes=[attribute(key, value) for key, value in values.items()])


def rank_resource(rank: int, world: int = 4, job: str = "job", run: str = "0123456789abcdef") -> Resource:
    """Return the resource of a rank, without the attributes of its host and process."""
    return resource_of({
        semconv.RANK: rank, semconv.WORLD_SIZE: world, semconv.JOB_ID: job, semconv.JOB_ATTEMPT: 0, semconv.RUN_ID: run,
    })  # fmt: skip


def logs_request(*entries: tuple[Resource, LogRecord]) -> bytes:
    """Return a request of log records, each with its own resource."""
    logs = [ResourceLogs(resource=of, scope_logs=[ScopeLogs(log_records=[record])]) for of, record in entries]
    return ExportLogsServiceRequest(resource_logs=logs).SerializeToString()


def report_record(body: Mapping[str, Any] | str, event: str = semconv.EVENT_PROGRESS, at: float = 0.0) -> LogRecord:
    """Return a rank report as a log record. ``at``: when it was made, in Unix seconds; 0: not stated."""
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    stamp = max(0, int(at * 1e9))
    return LogRecord(event_name=event, body=AnyValue(string_value=text), time_unix_nano=stamp)


def spans_request(resource: Resource, spans: Iterable[Span]) -> bytes:
    scopes = [ScopeSpans(spans=spans)]
    entries = [ResourceSpans(resource=resource, scope_spans=scopes)]
    return ExportTraceServiceRequest(resource_spans=entries).SerializeToString()


def order_attributes(span: Span, last: Sequence[str], first: Sequence[str] = ()) -> None:
    """Sort the span's attributes: ``first`` first, ``last`` last in this order.

    Monitors send attributes that differ from call to call last.
    """

    def place(item: KeyValue) -> int:
        return last.index(item.key) + 1 if item.key in last else -1 if item.key in first else 0

    span.attributes.sort(key=place)


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message."""
    size, head = len(content), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + content


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes(items: Sequence[KeyValue]) -> dict[str, Any]:
    return {item.key: plain(item.value) for item in items}


def spans(number: int, service: str = "web", size: int = 10, trace: bytes = b"") -> bytes:
    """Return a request of one foreign span. Each number gives a different span."""
    span = Span(name=f"GET /{number}", trace_id=trace or number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"))
    span.attributes.append(attribute("padding", "x" * size))
    return spans_request(resource_of({"service.name": service}), [span])
