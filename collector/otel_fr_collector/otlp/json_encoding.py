"""Converts OTLP/JSON to protobuf and back."""

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
"""Largest JSON request in bytes, decompressed. Python stores it as text with up to four bytes per character."""
MAX_VALUES = 500_000
"""Values of a request: objects, lists and their members. Each takes some 100 bytes and some microseconds. A span has
about 60."""
MAX_SHORT_TEXT = 64 << 10
"""Characters of a string that is no attribute's text or bytes. protobuf's errors quote it once for each level."""
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
    """Convert an OTLP/JSON request to protobuf.

    Raises:
        MalformedError: the body is not OTLP/JSON.
        TooManyError: the body is too large to be decoded.
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
                if holder[key] is not None:  # null: it has none
                    holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
        message = json_format.ParseDict(data, _REQUESTS[signal](), ignore_unknown_fields=True)
        return message.SerializeToString()
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, json_format.ParseError) as error:
        raise MalformedError(f"the body is not an OTLP/JSON {signal} request") from error


def _check_size(body: bytes) -> None:
    """Count the values without decoding them: count the characters outside strings that begin or separate values.

    Raises:
        TooManyError: there are too many values, or bytes.
    """
    if len(body) > MAX_BYTES:
        raise TooManyError(f"a JSON request is larger than {MAX_BYTES} bytes")
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHER_BYTES)
    # Stop if there are too many strings: splitting makes an object of each.
    if marks.count(b'"') > 4 * MAX_VALUES or len(b"".join(marks.split(b'"')[::2])) > MAX_VALUES:
        raise TooManyError(f"a JSON request has more than {MAX_VALUES} values")


def _check_texts(data: Any) -> None:
    """Raise ValueError if a string is longer than `MAX_SHORT_TEXT`, except an attribute's text or bytes."""
    stack = [data]
    while stack:
        one = stack.pop()
        for key, value in one.items() if isinstance(one, dict) else enumerate(one):
            if isinstance(value, (dict, list)):
                stack.append(value)
            elif isinstance(value, str) and len(value) > MAX_SHORT_TEXT and key not in _LONG:
                raise ValueError("a text is too long")


def _holders(data: Any) -> Iterator[dict[str, Any]]:
    """The objects of a request that may contain ids. Attributes are left out: their keys may have any name."""
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
    """Convert a response from protobuf to OTLP/JSON."""
    return message_json(_RESPONSES[signal].FromString(data))


def message_json(message: Message) -> bytes:
    """A message as JSON."""
    return json_format.MessageToJson(message, indent=None).encode()
