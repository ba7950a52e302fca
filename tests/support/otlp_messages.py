"""OTLP messages: attributes written and read, and requests of spans that are not otel-fr's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span


def attribute(key: str, value: Any) -> KeyValue:
    if isinstance(value, int):
        return KeyValue(key=key, value=AnyValue(int_value=value))
    if isinstance(value, list):
        return KeyValue(
            key=key, value=AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=v) for v in value]))
        )
    return KeyValue(key=key, value=AnyValue(string_value=value))


def field(number: int, content: bytes) -> bytes:
    """A field of a message, as protobuf writes it."""
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
    """A request of one foreign span that no other number has."""
    span = Span(name=f"GET /{number}", trace_id=trace or number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"))
    span.attributes.append(attribute("padding", "x" * size))
    resource = Resource(attributes=[attribute("service.name", service)])
    scopes = [ScopeSpans(spans=[span])]
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=scopes)]
    ).SerializeToString()
