"""Reads the program's own OpenTelemetry span. A step's span links to it."""

from __future__ import annotations

import sys
from typing import Final

from otel_fr.ring import Body
from otel_fr.ring.activity_layout import FLAG_CONTEXT

_LOWER: Final = (1 << 64) - 1

SpanIds = tuple[int, int, int]
"""The upper and the lower half of the trace id, and the span id."""


def current_span() -> SpanIds | None:
    """Return this thread's current span if it is recording, else None. Never raises.

    If the program has not imported OpenTelemetry's API, this costs only a look-up in a dictionary.
    """
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    try:
        span = api.get_current_span()
        if not span.is_recording():
            return None
        context = span.get_span_context()
        trace, own = int(context.trace_id), int(context.span_id)
    except Exception:  # noqa: BLE001 - the API is replaced or half imported; the step is recorded without a span
        return None
    if not (0 < trace < 1 << 128 and 0 < own < 1 << 64):
        return None
    return trace >> 64, trace & _LOWER, own


def with_span(body: Body, span: SpanIds) -> Body:
    """Return the body of a step's row with the span's ids (`FLAG_CONTEXT`)."""
    upper, lower, own = span
    return (body[0], body[1] | FLAG_CONTEXT, upper, *body[3:7], lower, own, *body[9:])
