"""OTLP requests decoded only as far as needed; the rest stays the bytes that came.

`parse_request` keeps resources, spans, log records and metrics as bytes: calls of one site and shape send the same
bytes again and again, so their meaning is looked up by these (`jobs.span_reader.SpanReader`) instead of being decoded
each time. `select_traces` reads the trace id of each span. The three requests have the same field numbers as far as
they are read here (opentelemetry-proto: resource_* = 1; in these resource = 1, scope_* = 2; in these spans, log_records
or metrics = 2). Fields that are not read are left out; protobuf keeps them as unknown fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from google.protobuf.message import DecodeError

from otel_fr_collector.otlp import wire
from otel_fr_collector.otlp.message_classes import Field, make_classes
from otel_fr_collector.otlp.signals import MalformedError


class RawScope(Protocol):
    """``items``: each the bytes of a span, a log record or a metric."""

    items: Sequence[bytes]


class RawEntry(Protocol):
    """What one resource sends. ``resource``: the bytes of each time that the field occurs, see `resource_of`."""

    resource: Sequence[bytes]
    scopes: Sequence[RawScope]


class RawRequest(Protocol):
    entries: Sequence[RawEntry]


_CLASSES = make_classes(
    "otel_fr.partial",
    {
        "Request": [Field("entries", 1, "Entry", repeated=True)],
        "Entry": [Field("resource", 1, "bytes", repeated=True), Field("scopes", 2, "Scope", repeated=True)],
        "Scope": [Field("items", 2, "bytes", repeated=True)],
        "Traces": [Field("entries", 1, "TracesEntry", repeated=True)],
        "TracesEntry": [Field("scopes", 2, "TracesScope", repeated=True)],
        "TracesScope": [Field("spans", 2, "Span", repeated=True)],
        "Span": [Field("trace_id", 1, "bytes")],
    },
)
_REQUEST, _TRACES = _CLASSES["Request"], _CLASSES["Traces"]


def parse_request(data: bytes) -> RawRequest:
    """A request of any signal, its resources and items as bytes.

    Raises:
        MalformedError: the bytes are not an OTLP request.
        TooManyError: it has more resources, scopes or items than are taken.
    """
    wire.check_request(data)
    try:
        request = cast("RawRequest", _REQUEST.FromString(data))
    except DecodeError as error:
        raise MalformedError("the request is not an OTLP message") from error
    if 2 * wire.MAX_CONTAINERS < len(data) < wire.COUNT_FROM:  # fewer bytes hold fewer of them
        entries = request.entries
        if len(entries) + sum([len(entry.scopes) for entry in entries]) > wire.MAX_CONTAINERS:
            raise wire.too_many()
    return request


def bytes_of(request: RawRequest) -> bytes:
    """All of a request, with what was not read of it."""
    encoded: bytes = cast("Any", request).SerializeToString()
    return encoded


def resource_of(entry: RawEntry) -> bytes:
    """The bytes of an entry's `Resource`.

    A field that occurs several times is one message: its parts one after the other (protobuf encoding, "Last One
    Wins"). Every decoder of a complete request does the same, so no part is read here that a backend does not read.
    """
    parts = entry.resource
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
