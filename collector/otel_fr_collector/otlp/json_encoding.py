"""OTLP/JSON to protobuf and back."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from otel_fr.encodable import load_json
from otel_fr_collector.otlp.signals import LOGS, METRICS, TRACES, MalformedError
from otel_fr_collector.otlp.wire import TooManyError

MAX_BYTES = 16 << 20
"""Of a request as JSON, decompressed. Python keeps it as text of up to four bytes a character."""
MAX_VALUES = 500_000
"""Values of a request: objects, lists and their members. Each takes some 100 bytes and some microseconds; a span has
about 60."""
MAX_SHORT_TEXT = 64 << 10
"""Characters of a text that is neither text nor bytes of a value. protobuf's errors quote it once for each level."""
_LONG = frozenset({"stringValue", "string_value", "bytesValue", "bytes_value"})
_OTHER_BYTES = bytes(byte for byte in range(256) if byte not in b'"{[,')

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


def from_json(signal: str, body: bytes) -> bytes:
    """An OTLP/JSON request as protobuf.

    Raises:
        MalformedError: the body is not OTLP/JSON.
        TooManyError: it is larger than is decoded.
    """
    _check_size(body)
    try:
        data = load_json(body)
        if not isinstance(data, dict):
            raise TypeError("not an object")
        _check_texts(data)
        for holder in _holders(data):
            for key in _IDS & holder.keys():
                # OTLP/JSON writes ids in hex (specification, "JSON Protobuf Encoding"); protobuf's JSON is base64.
                holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
        message = json_format.ParseDict(data, _REQUESTS[signal](), ignore_unknown_fields=True)
        return message.SerializeToString()
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, json_format.ParseError) as error:
        raise MalformedError(f"the body is not an OTLP/JSON {signal} request") from error


def _check_size(body: bytes) -> None:
    """Count the values without decoding them, by the characters outside texts that begin or separate values.

    Raises:
        TooManyError: there are too many values, or bytes.
    """
    if len(body) > MAX_BYTES:
        raise TooManyError(f"a JSON request is larger than {MAX_BYTES} bytes")
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER_BYTES)
    # Not one step further if there are too many texts: splitting makes an object of each.
    if marks.count(b'"') > 4 * MAX_VALUES or len(b"".join(marks.split(b'"')[::2])) > MAX_VALUES:
        raise TooManyError(f"a JSON request has more than {MAX_VALUES} values")


def _check_texts(data: Any) -> None:
    """Raises ValueError if a text is longer than any of its kind can be."""
    stack = [data]
    while stack:
        one = stack.pop()
        for key, value in one.items() if isinstance(one, dict) else enumerate(one):
            if isinstance(value, (dict, list)):
                stack.append(value)
            elif isinstance(value, str) and len(value) > MAX_SHORT_TEXT and key not in _LONG:
                raise ValueError("a text is too long")


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
