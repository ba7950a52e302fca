"""OTLP's envelope: methods, statuses, JSON bodies, and the resources of a request without its items."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import semconv as names
from otel_fr_collector.jobs.ingest import LOGS, METRICS, TRACES, MalformedError

METHODS = {
    TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
_REQUESTS: dict[str, type[Message]] = {
    TRACES: ExportTraceServiceRequest,
    LOGS: ExportLogsServiceRequest,
    METRICS: ExportMetricsServiceRequest,
}
_RESPONSES: dict[str, type[Message]] = {
    TRACES: ExportTraceServiceResponse,
    LOGS: ExportLogsServiceResponse,
    METRICS: ExportMetricsServiceResponse,
}
_IDS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
_HOLDERS = ("resourceSpans", "scopeSpans", "spans", "links", "resourceLogs", "scopeLogs", "logRecords")
_METRIC_HOLDERS = ("resourceMetrics", "scopeMetrics", "metrics", "dataPoints", "exemplars")
_METRIC_KINDS = ("gauge", "sum", "histogram", "exponentialHistogram", "summary")

# The codes of google.rpc.Code, which are gRPC's.
INVALID_ARGUMENT, DEADLINE_EXCEEDED, PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNIMPLEMENTED = 3, 4, 7, 8, 12
INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 13, 14, 16

RETRY_SECONDS = (1.0, 3.0)
"""A client sent away comes back after a time in this range, so that a thousand do not come back at once."""


def retry_delay() -> float:
    """Seconds after which one client should come back."""
    return random.uniform(*RETRY_SECONDS)  # noqa: S311  spreads load, keeps nothing secret


def status(code: int, text: str, delay: float | None = None) -> Status:
    """A google.rpc.Status, with RetryInfo if ``delay`` is given."""
    found = Status(code=code, message=text)
    if delay is not None:
        found.details.append(_pack(_retry_info(delay)))
    return found


def retry_trailers(code: int, text: str, delay: float) -> tuple[tuple[str, bytes], ...]:
    """gRPC trailers that ask a client to come back after ``delay`` seconds.

    ``grpc-status-details-bin`` is what the specification asks for. OpenTelemetry's exporter for Python reads
    ``google.rpc.retryinfo-bin`` instead (opentelemetry/exporter/otlp/proto/grpc/exporter.py, 1.45), so both are sent.
    """
    return (
        ("grpc-status-details-bin", status(code, text, delay).SerializeToString()),
        ("google.rpc.retryinfo-bin", _retry_info(delay).SerializeToString()),
    )


def read_retry_delay(trailers: Iterable[Any]) -> float | None:
    """The seconds that a server's trailers (pairs of name and value) ask to wait; None: they do not."""
    info = RetryInfo()
    for key, value in trailers:
        if not isinstance(value, bytes):
            continue
        try:
            if key == "google.rpc.retryinfo-bin":
                info = RetryInfo.FromString(value)
            elif key == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    detail.Unpack(info)
        except DecodeError:
            continue
    if not info.HasField("retry_delay"):
        return None
    return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)


def _retry_info(delay: float) -> RetryInfo:
    return RetryInfo(retry_delay=Duration(seconds=int(delay), nanos=int(delay % 1 * 1e9)))


def _pack(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def from_json(signal: str, body: bytes) -> bytes:
    """An OTLP/JSON request as protobuf.

    Raises:
        MalformedError: it is none.
    """
    try:
        data = json.loads(body)
        for holder in _holders(data):
            for key in _IDS & holder.keys():
                # OTLP/JSON writes ids in hex (specification, "JSON Protobuf Encoding"); protobuf's JSON is base64.
                holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
        message = json_format.ParseDict(data, _REQUESTS[signal](), ignore_unknown_fields=True)
        return message.SerializeToString()
    except (ValueError, TypeError, AttributeError, RecursionError, json_format.ParseError) as error:
        raise MalformedError(f"the body is no OTLP/JSON {signal} request") from error


def _holders(data: Any) -> Iterator[dict[str, Any]]:
    """The objects of a request in which ids may be. Attributes are left alone: a key of theirs may have any name."""
    stack = [data]
    while stack:
        one = stack.pop()
        if not isinstance(one, dict):
            continue
        yield one
        for key in (*_HOLDERS, *_METRIC_HOLDERS):
            value = one.get(key)
            if isinstance(value, list):
                stack += value
        stack += [one[key] for key in _METRIC_KINDS if isinstance(one.get(key), dict)]


def response_json(signal: str, data: bytes) -> bytes:
    """A response's protobuf bytes as OTLP/JSON."""
    return message_json(_RESPONSES[signal].FromString(data))


def message_json(message: Message) -> bytes:
    """A message as JSON."""
    return json_format.MessageToJson(message, indent=None).encode()


def _skims() -> tuple[type[Any], type[Any]]:
    """Messages that know of a request only the resources, or only the trace ids; the rest stays unread bytes.

    The three requests have the same numbers there (opentelemetry-proto: resource_* = 1, resource = 1; for traces
    scope_spans = 2, spans = 2, trace_id = 1), and protobuf keeps what it does not know.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="otel_fr/skim.proto", package="otel_fr.skim", syntax="proto3")
    resource_type = "." + Resource.DESCRIPTOR.full_name
    file.dependency.append(Resource.DESCRIPTOR.file.name)
    many, one = field.LABEL_REPEATED, field.LABEL_OPTIONAL
    for name, fields in (
        ("Origins", [("entries", 1, many, ".otel_fr.skim.Origin")]),
        ("Origin", [("resource", 1, one, resource_type)]),
        ("Traces", [("entries", 1, many, ".otel_fr.skim.Entry")]),
        ("Entry", [("scopes", 2, many, ".otel_fr.skim.Scope")]),
        ("Scope", [("spans", 2, many, ".otel_fr.skim.Span")]),
        ("Span", [("trace_id", 1, one, "")]),
    ):
        message = file.message_type.add(name=name)
        for label, number, times, kind in fields:
            found = message.field.add(name=label, number=number, label=times)
            found.type = field.TYPE_MESSAGE if kind else field.TYPE_BYTES
            if kind:
                found.type_name = kind
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    origins, traces = (pool.FindMessageTypeByName(f"otel_fr.skim.{name}") for name in ("Origins", "Traces"))
    return message_factory.GetMessageClass(origins), message_factory.GetMessageClass(traces)


_ORIGINS, _TRACES = _skims()


def job_names(data: bytes) -> Iterator[str]:
    """For each resource of a request of any signal, the job it speaks for: its job id, else its service's name.

    The job id comes first because it is what the collector itself tells runs apart by.

    Raises:
        MalformedError: the bytes are no OTLP request.
    """
    try:
        request = _ORIGINS.FromString(data)
    except DecodeError as error:
        raise MalformedError("the request is no OTLP message") from error
    for entry in request.entries:
        # The last of several values counts, as it does where runs are told apart.
        texts = {item.key: item.value.string_value for item in entry.resource.attributes}
        yield texts.get(names.JOB_ID) or texts.get(names.SERVICE_NAME, "")


def select_traces(data: bytes, wanted: Any) -> bytes:
    """A trace request with only the spans whose trace id is ``wanted``; empty bytes: there are none.

    Args:
        data: a request that decodes.
        wanted: called with each trace id (bytes).
    """
    request = _TRACES.FromString(data)
    kept_any = changed = False
    for entry in request.entries:
        for scope in entry.scopes:
            spans = scope.spans
            keep = [span for span in spans if wanted(span.trace_id)]
            if len(keep) != len(spans):
                changed = True
                spans_kept = [span.SerializeToString() for span in keep]
                del spans[:]
                for one in spans_kept:
                    spans.add().MergeFromString(one)
            kept_any = kept_any or bool(spans)
        for index in reversed(range(len(entry.scopes))):
            if not entry.scopes[index].spans:
                del entry.scopes[index]
    if not kept_any:
        return b""
    if not changed:
        return data
    for index in reversed(range(len(request.entries))):
        if not request.entries[index].scopes:
            del request.entries[index]
    encoded: bytes = request.SerializeToString()
    return encoded
