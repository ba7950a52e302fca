"""A hostile client's requests: few bytes when compressed, but as much as possible for the collector to keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_fr import semconv
from tests.support.otlp_messages import attribute, rank_resource, spans_request

WIDE = "😀"
"""Makes each character of a text take four bytes."""


_RANK = rank_resource(0, 64, "hostile")


def span(number: int, group: str = "g", size: int = 64, end: str = "", dtypes: Sequence[str] = (), **more: Any) -> Span:
    """A span in the form that monitors send. ``end``: text after the attributes."""
    values = {
        semconv.GROUP_ID: group, semconv.OPERATION: "all_reduce", semconv.KIND: "collective",
        semconv.STATE: "completed", semconv.GROUP_SIZE: size, **more, semconv.INPUT_DTYPES: list(dtypes),
        semconv.SEQUENCE_ID: number, semconv.RECORD_ID: number,
    }  # fmt: skip
    found = Span(
        trace_id=bytes(16), span_id=bytes(8), parent_span_id=bytes(8), name="all_reduce", kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=10**18, end_time_unix_nano=10**18 + 5,
    )  # fmt: skip
    found.attributes.extend(attribute(key, value) for key, value in values.items())
    if end:
        found.status.message = end
    return found


def long_tails(number: int) -> bytes:
    """14 MiB of spans, each with a different long text after its attributes."""
    return spans_request(_RANK, [span(i, end=f"{number}-{i}-" + "x" * 200_000) for i in range(70)])


def long_sites(number: int) -> bytes:
    """Spans, each with its own call site."""
    sites: Iterator[dict[str, Any]] = ({semconv.CODE_FILE: f"{number}-{i}" + WIDE * 1_000} for i in range(300))
    return spans_request(_RANK, [span(i, **site) for i, site in enumerate(sites)])


def long_names(number: int) -> bytes:
    """Spans, each with its own group."""
    texts: dict[str, Any] = {semconv.GROUP_NAME: WIDE * 1_000, semconv.GROUP_DESCRIPTION: WIDE * 1_000}
    return spans_request(_RANK, [span(i, f"{number}-{i}" + WIDE * 200, **texts) for i in range(200)])


def long_dtypes(number: int) -> bytes:
    """Spans with long dtype names."""
    names = ([f"{number}-{i}-{j}" + WIDE * 900 for j in range(60)] for i in range(10))
    return spans_request(_RANK, [span(i, dtypes=own) for i, own in enumerate(names)])
