"""OTLP trace requests decoded as far as the correlator needs: resources and spans stay the bytes they came as.

The calls of one site and shape send the same bytes again and again, so what they mean is looked up by these
(`spans.SpanReader`) instead of being decoded once more. The messages are built at import from OTLP's own descriptors,
with a field's type turned into ``bytes``, which has the same encoding; fields that nobody here reads are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

_PACKAGE = "otel_fr.wire"
_KEPT: dict[Descriptor, dict[str, bool]] = {
    ExportTraceServiceRequest.DESCRIPTOR: {"resource_spans": False},
    ResourceSpans.DESCRIPTOR: {"resource": True, "scope_spans": False},
    ScopeSpans.DESCRIPTOR: {"spans": True},
}
"""By message: the fields that are read; True: as the bytes of a message."""


class RawScopeSpans(Protocol):
    """``spans``: each the bytes of a `Span`."""

    spans: Sequence[bytes]


class RawResourceSpans(Protocol):
    """``resource``: the bytes of a `Resource`."""

    resource: bytes
    scope_spans: Sequence[RawScopeSpans]


class RawRequest(Protocol):
    resource_spans: Sequence[RawResourceSpans]


def _classes() -> dict[str, Any]:
    file = FileDescriptorProto(name="otel_fr/wire.proto", package=_PACKAGE, syntax="proto3")
    for descriptor, fields in _KEPT.items():
        message = file.message_type.add(name=descriptor.name)
        whole = DescriptorProto()
        descriptor.CopyToProto(whole)
        message.field.extend(field for field in whole.field if field.name in fields)
        for field in message.field:
            if fields[field.name]:
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
            elif field.type == FieldDescriptorProto.TYPE_MESSAGE:
                field.type_name = f".{_PACKAGE}.{field.type_name.rpartition('.')[2]}"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        descriptor.name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{descriptor.name}"))
        for descriptor in _KEPT
    }


_CLASSES = _classes()


def parse_request(data: bytes) -> RawRequest:
    """A trace request.

    Raises:
        google.protobuf.message.DecodeError: it is none.
    """
    return cast("RawRequest", _CLASSES["ExportTraceServiceRequest"].FromString(data))
