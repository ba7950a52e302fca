"""Builds the spans of sections and steps, and finds the section or step in which a call was made.

All ranks share a collective's trace, so a section of one rank cannot be its parent. Instead, each step and its sections
have a separate trace, and a call's span links to the innermost section or step (docs/reference/telemetry.md).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.monitor.telemetry.span_builder import Context, varint
from otel_fr.otlp_attributes import attributes
from otel_fr.ring import Activity

MAX_KEPT: Final = 4096
"""How many sections and steps are kept for calls that end later: about an hour of steps of a second."""
MAX_LOOKED_AT: Final = 64
"""How many of them are examined for one call, the latest first. The call was made in one of these, or in none."""
_TAG_SPANS: Final = b"\x12"


@dataclass(slots=True, order=True)
class _Interval:
    began_ns: int
    number: int
    ended_ns: int | None = field(compare=False)
    context: Context = field(compare=False)


class ActivitySpans:
    """Builds the spans of one rank's sections and steps, and finds the section or step at a given time.

    Args:
        run: `identity.run_id`.
        wall_offset_ns: wall clock minus the rank's monotonic clock.
        main_thread: kernel id of the main thread. Calls are looked up only in its sections, and in steps.
        suffix: suffix of the spans' names.
    """

    def __init__(self, run: str, rank: int, wall_offset_ns: int, main_thread: int, suffix: str = "") -> None:
        self._run = run
        self._rank = rank
        self._wall = wall_offset_ns
        self._main_thread = main_thread
        self._suffix = suffix
        self._order: list[_Interval] = []
        self._known: dict[int, _Interval] = {}

    def note(self, begun: Iterable[Activity], ended: Iterable[Activity]) -> None:
        """Note the sections and steps that are open now, and those that have ended since the last call."""
        for item in (*begun, *ended):
            if not item.is_step and item.native_id != self._main_thread:
                continue
            known = self._known.get(item.number)
            if known is not None:
                known.ended_ns = item.ended_ns
                if item.user is not None and known.context.user is None:  # known only when an optimizer's step ends
                    known.context = self._context(item)
                continue
            interval = _Interval(item.began_ns, item.number, item.ended_ns, self._context(item))
            self._known[item.number] = interval
            insort(self._order, interval)
        excess = len(self._order) - MAX_KEPT
        if excess > 0:
            for interval in self._order[:excess]:
                del self._known[interval.number]
            del self._order[:excess]

    def at(self, time_ns: int) -> Context | None:
        """Return the innermost step or section of the rank at that time, or None if none is known."""
        last = bisect_right(self._order, time_ns, key=lambda interval: interval.began_ns)
        for place in range(last - 1, max(-1, last - 1 - MAX_LOOKED_AT), -1):
            interval = self._order[place]
            if interval.ended_ns is None or time_ns < interval.ended_ns:
                return interval.context
        return None

    def trace_of(self, item: Activity) -> bytes:
        """Return the trace id of a section or step, 16 bytes."""
        return identity.activity_trace_id(self._run, self._rank, item.root)

    def encode(self, item: Activity, rank_ended_ns: int | None = None, clean: bool = False) -> bytes:
        """Encode one entry of ``ScopeSpans.spans``.

        Args:
            rank_ended_ns: when the rank ended, for a section or step that was open then.
            clean: True if the rank ended cleanly.
        """
        trace = self.trace_of(item)
        ended = item.ended_ns or rank_ended_ns or item.began_ns
        span = Span(
            trace_id=trace,
            span_id=identity.activity_span_id(trace, item.number),
            parent_span_id=identity.activity_span_id(trace, item.parent) if item.parent else b"",
            name=("step" if item.is_step else item.name or "(no name)") + self._suffix,
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=max(0, item.began_ns + self._wall),
            end_time_unix_nano=max(0, max(ended, item.began_ns) + self._wall),
        )
        error = names.ERROR_EXCEPTION if item.is_failed else None
        if item.ended_ns is None and not clean:
            error = names.ERROR_RANK_EXITED
        values: dict[str, object] = {
            names.RANK: self._rank,
            names.STEP: item.step if item.is_step or item.step >= 0 else None,
            names.SECTION: None if item.is_step else item.name,
            names.SECTION_TIMEOUT: item.timeout_ms or None,
            names.SECTION_LEFT: 1 if item.is_left else None,
            names.STEP_SOURCE: ("optimizer" if item.is_automatic else "program") if item.is_step else None,
            names.THREAD_ID: item.native_id or None,
            names.ERROR_TYPE: error,
        }
        span.attributes.extend(attributes(values))
        if item.user is not None:
            span.links.add(trace_id=item.user[:16], span_id=item.user[16:])
        if error is not None:
            span.status.code = Status.STATUS_CODE_ERROR
        data = span.SerializeToString()
        return _TAG_SPANS + varint(len(data)) + data

    def _context(self, item: Activity) -> Context:
        trace = self.trace_of(item)
        step = self._known.get(item.root)
        user = item.user if item.is_step or step is None else step.context.user
        return Context(trace, identity.activity_span_id(trace, item.number), item.step, user)
