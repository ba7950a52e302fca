"""OTLP requests decoded only as far as needed; the rest stays the bytes that came.

`parse_trace_request` keeps resources and spans as bytes: calls of one site and shape send the same bytes again and
again, so their meaning is looked up by these (`jobs.span_reader.SpanReader`) instead of being decoded each time. Its
messages are built at import from OTLP's own descriptors, with a field's type changed to ``bytes``, which has the same
encoding; fields that are not read are left out. `job_names` and `select_traces` read one field of each resource or
span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from otel_fr import semconv as names
from otel_fr_collector.otlp.signals import MalformedError

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


def _raw_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="otel_fr/wire.proto", package=_PACKAGE, syntax="proto3")
    for descriptor, fields in _KEPT.items():
        message = file.message_type.add(name=descriptor.name)
        whole = descriptor_pb2.DescriptorProto()
        descriptor.CopyToProto(whole)
        message.field.extend(field for field in whole.field if field.name in fields)
        for field in message.field:
            if fields[field.name]:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
            elif field.type == descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE:
                field.type_name = f".{_PACKAGE}.{field.type_name.rpartition('.')[2]}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        descriptor.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{descriptor.name}"))
        for descriptor in _KEPT
    }


_RAW = _raw_classes()


def parse_trace_request(data: bytes) -> RawRequest:
    """A trace request, its resources and spans as bytes.

    Raises:
        google.protobuf.message.DecodeError: the bytes are not one.
    """
    return cast("RawRequest", _RAW["ExportTraceServiceRequest"].FromString(data))


def _partial_classes() -> tuple[type[Any], type[Any]]:
    """Messages that decode only the resources of a request, or only its trace ids; the rest stays bytes.

    The three requests have the same numbers there (opentelemetry-proto: resource_* = 1, resource = 1; for traces
    scope_spans = 2, spans = 2, trace_id = 1), and protobuf keeps unknown fields.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="otel_fr/partial.proto", package="otel_fr.partial", syntax="proto3")
    resource_type = "." + Resource.DESCRIPTOR.full_name
    file.dependency.append(Resource.DESCRIPTOR.file.name)
    many, one = field.LABEL_REPEATED, field.LABEL_OPTIONAL
    for name, fields in (
        ("Origins", [("entries", 1, many, ".otel_fr.partial.Origin")]),
        ("Origin", [("resource", 1, one, resource_type)]),
        ("Traces", [("entries", 1, many, ".otel_fr.partial.Entry")]),
        ("Entry", [("scopes", 2, many, ".otel_fr.partial.Scope")]),
        ("Scope", [("spans", 2, many, ".otel_fr.partial.Span")]),
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
    origins, traces = (pool.FindMessageTypeByName(f"otel_fr.partial.{name}") for name in ("Origins", "Traces"))
    return message_factory.GetMessageClass(origins), message_factory.GetMessageClass(traces)


_ORIGINS, _TRACES = _partial_classes()


def job_names(data: bytes) -> Iterator[str]:
    """For each resource of a request of any signal, the job that it names: its job id, else its service's name.

    The job id comes first because the collector itself identifies runs by it.

    Raises:
        MalformedError: the bytes are not an OTLP request.
    """
    try:
        request = _ORIGINS.FromString(data)
    except DecodeError as error:
        raise MalformedError("the request is not an OTLP message") from error
    for entry in request.entries:
        # The last of several values counts, as in `jobs.span_reader.read_origin`.
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
