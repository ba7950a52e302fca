"""Decodes OTLP requests only as far as needed. The rest stays bytes.

`parse_request` keeps resources, spans, log records and metrics as bytes. Calls of one call site and shape send the same
bytes again and again, so `jobs.span_reader.SpanReader` looks up their meaning by the bytes instead of decoding them
each time. `select_traces` reads only the trace id of each span.

The requests of all three signals use the same field numbers here (opentelemetry-proto): a request has resource_* = 1;
each of them has resource = 1 and scope_* = 2; each scope_* has spans, log_records or metrics = 2. protobuf keeps all
other fields as unknown fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from google.protobuf.message import DecodeError

from otel_fr_collector.otlp import wire
from otel_fr_collector.otlp.message_classes import Field, make_classes
from otel_fr_collector.otlp.signals import MalformedError


class RawScope(Protocol):
    """The items of one scope. ``items``: the bytes of each span, log record or metric."""

    items: Sequence[bytes]


class RawEntry(Protocol):
    """The items of one resource. ``resource``: the bytes of each occurrence of the field, see `resource_of`."""

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
    """Decode a request of any signal, and keep its resources and items as bytes.

    Raises:
        MalformedError: the bytes are not an OTLP request.
        TooManyError: the request has too many resources, scopes or items.
    """
    wire.check_request(data)
    try:
        request = cast("RawRequest", _REQUEST.FromString(data))
    except DecodeError as error:
        raise MalformedError("the request is not an OTLP message") from error
    if 2 * wire.MAX_CONTAINERS < len(data) < wire.COUNT_FROM:  # each takes two bytes or more
        entries = request.entries
        if len(entries) + sum([len(entry.scopes) for entry in entries]) > wire.MAX_CONTAINERS:
            raise wire.too_many()
    return request


def bytes_of(request: RawRequest) -> bytes:
    """Encode a request, including the fields that were not read."""
    encoded: bytes = cast("Any", request).SerializeToString()
    return encoded


def resource_of(entry: RawEntry) -> bytes:
    """The bytes of an entry's `Resource`.

    If a message field occurs several times, its parts are concatenated (protobuf encoding, "Last One Wins"). Every
    decoder of a complete request does the same, so a backend reads the same resource.
    """
    parts = entry.resource
    return parts[0] if len(parts) == 1 else b"".join(parts)


def select_traces(data: bytes, wanted: Any) -> bytes:
    """Return a trace request with only the spans whose trace id is wanted. Empty if there are none.

    Args:
        data: a request that can be decoded.
        wanted: called with each trace id (bytes). Returns whether to keep the span.
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
