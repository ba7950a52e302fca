"""An incident as spans in the trace of its collective: what is known while it lasts, and how long it lasted.

A sent span cannot be changed, and backends show each copy that they receive. So each fact is a span of its own, sent
once, and its id says what it is about (`otel_fr.identity.incident_span_id`): the incident is the root; below it are the
waiting ranks and culprits, later the changes, and the end. The ranks' own spans have other ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.incident import IncidentData
from otel_fr.match import Category
from otel_fr.otlp_attributes import attributes, utf8
from otel_fr.presentation import group_name, ranks_text

MAX_SECONDS = 2.0**62 / 1e9
"""Unix time (in 2116) above which a time counts as damaged. As nanoseconds, it fits OTLP's fixed64."""
MAX_WAITING: Final = 128
"""Waiting ranks with a span, because people read traces. The root names all of them."""
MAX_CULPRITS: Final = 64
MAX_STACK: Final = 8_192
"""Characters of a stack. With these limits, a trace has less than 2 MB; OTLP's servers accept 4."""
MAX_TEXT: Final = 1_000
MAX_NAME: Final = 120
LEAD: Final = 0.1
"""Seconds by which the root begins before the first call. Backends name a trace after the root span that begins first,
and the collector knows when a call began only up to the delay of a rank report."""

LIVE: Final = "live"
FILES: Final = "files"
"""Who reports: the collector, or ``otel-fr analyze --otlp``. Their ids differ, so that a trace may have both."""

_PLACE: Final = (names.HOST_NAME, names.K8S_NODE_NAME, names.K8S_POD_NAME)
"""Attributes of a rank's resource that are also on its span, because lists and searches of spans show those first."""

_FAULTS: Final = {
    Category.MISSING_RANK.value: "not here",
    Category.RANK_STUCK.value: "stuck",
    Category.RANK_DEAD.value: "dead",
    Category.UNMATCHED_P2P.value: "no matching call",
    Category.DEADLOCK.value: "in the cycle",
    Category.STALLED_COLLECTIVE.value: "stalled",
    Category.STRAGGLER.value: "late",
    Category.HEARTBEAT_MISSED.value: "no heartbeat",
    Category.SECTION_OVERRUN.value: "section too long",
}


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Facts about one rank. Unknown texts are empty, unknown times None.

    Attributes:
        resource: attributes of the rank's resource.
        call: operation and group of the call that it is in. sequence_id: of that call.
        started: Unix seconds at which it enqueued the call.
        site: ``"file:line function"``: a waiting rank's call, or where a culprit is.
        error: the exception that ended it, ``"Type: message"``.
    """

    rank: int
    resource: Mapping[str, object] = field(default_factory=dict)
    call: str = ""
    sequence_id: int | None = None
    started: float | None = None
    site: str = ""
    stack: str = ""
    error: str = ""


def headline(data: IncidentData) -> str:
    """``"INCIDENT missing_rank: rank 2"``; for a consequence, which has no culprits, ``"CONSEQUENCE missing_rank"``."""
    word = "INCIDENT" if data["caused_by"] is None else "CONSEQUENCE"
    culprits = data["culprit_ranks"] if data["caused_by"] is None else []
    return f"{word} {data['category']}" + (f": {ranks_text(culprits)}" if culprits else "")


class IncidentSpans:
    """Makes the spans of one incident. Only the incident's own has a process group id, which marks ranks' calls.

    Collectors do not take it for a call, because its resource has no rank.

    Args:
        started: Unix seconds at which the fault began; None: unknown.
        source: `LIVE` or `FILES`.
        is_first: False: the trace also belongs to another incident, which has its root span.
        cause: the trace of the incident that this one follows from, if it is another trace.
    """

    def __init__(
        self,
        data: IncidentData,
        started: float | None,
        *,
        source: str = LIVE,
        is_first: bool = True,
        cause: bytes | None = None,
    ) -> None:
        assert data["trace_id"] is not None
        self.trace = bytes.fromhex(data["trace_id"])
        self._data = data
        self._started = started
        self._source = source
        self._cause = cause
        root = self._root_id(self.trace)
        self._id = root if is_first else self._new_id("incident", data["id"])
        self._parent = b"" if is_first else root

    def incident(self, now: float, first: float | None = None) -> Span:
        """The incident up to now. It is the trace's root, unless another incident came first.

        Args:
            first: Unix seconds at which the first of its other spans begins.
        """
        data = self._data
        begins = [time for time in (self._started, first, now) if time is not None]
        start = min(begins) - (LEAD if self._source == LIVE else 0.0)
        name = headline(data) + ("" if self._source == LIVE else " (from files)")
        span = self._span(self._id, self._parent, name, start, now, data["summary"])
        group = data["process_group"]
        values: dict[str, object] = {
            names.INCIDENT_ID: data["id"],
            names.INCIDENT_CATEGORY: data["category"],
            names.INCIDENT_CULPRITS: data["culprit_ranks"] if data["caused_by"] is None else None,
            names.INCIDENT_CAUSED_BY: data["caused_by"],
            names.INCIDENT_WAITING: data["waiting_ranks"],
            names.INCIDENT_STUCK_ON: data["stuck_on"],
            names.ERROR_TYPE: data["category"],
            **self._of_collective(),
        }
        if group is not None:
            values[names.GROUP_ID] = group["id"]
            values[names.GROUP_NAME] = group["name"]
            values[names.GROUP_SIZE] = len(group["ranks"]) or None
        span.attributes.extend(attributes(values))
        if self._cause is not None:
            span.links.add(trace_id=self._cause, span_id=self._root_id(self._cause))
        return span

    def waiting(self, facts: RankFacts, now: float, parent: bytes | None = None) -> Span:
        """A rank that waits, up to now. The span is provisional: the rank sends its call's span when the call ends.

        Args:
            parent: the change that made the rank known; None: the incident.
        """
        data = self._data
        call = facts.call or f"{data['operation']} {self._group()}"
        start = facts.started if facts.started is not None else self._started
        name = f"waits: {call} [rank {facts.rank}]"
        span = self._span(self._new_id("waiting", facts.rank), parent or self._id, name, start, now)
        values = {**self._of_rank(facts), names.PROVISIONAL: True, names.SEQUENCE_ID: facts.sequence_id}
        span.attributes.extend(attributes({**self._of_collective(), **values}))
        _add_stack(span, facts)
        return span

    def culprit(self, facts: RankFacts, now: float, parent: bytes | None = None) -> Span:
        """A culprit: what is wrong with it, and where it is. ``parent``: as in `waiting`."""
        what, where = self._fault(facts.rank), place(facts.site)
        if not where and facts.error:
            where = facts.error.split(":", 1)[0]
        name = f"rank {facts.rank}: {what}" + (f", {where}" if where else "")
        message = f"{what}: {facts.error}" if facts.error else f"{what}, at {facts.site or 'an unknown place'}"
        of = ("culprit", facts.rank, bool(facts.site or facts.stack or facts.error))
        span = self._span(self._new_id(*of), parent or self._id, name[:MAX_NAME], self._started, now, message)
        span.attributes.extend(attributes({**self._of_rank(facts), names.ERROR_TYPE: self._data["category"]}))
        _add_stack(span, facts)
        return span

    def change(self, revision: int, now: float) -> Span:
        """The incident as it is known now. Its children are the ranks that have become known.

        It lasts longer than the root, which has what was known before. Jaeger warns of a wrong clock if a child is
        shorter than its parent and ends later.
        """
        data = self._data
        number = self._new_id("change", data["id"], revision)
        span = self._span(number, self._id, headline(data), self._started, now, data["summary"])
        span.attributes.extend(attributes(self._of_revision(revision)))
        return span

    def end(self, revision: int, resolved: float, resolution: str | None) -> Span:
        """The incident from its begin to its end, with the reason of its end."""
        data = self._data
        name = headline(data).replace("INCIDENT", "RESOLVED", 1)
        span = self._span(self._new_id("end", data["id"], revision), self._id, name, self._started, resolved)
        values = {names.INCIDENT_RESOLVED: data["id"], names.INCIDENT_RESOLUTION: resolution}
        span.attributes.extend(attributes({**values, **self._of_revision(revision), **self._of_collective()}))
        return span

    # ---- parts of spans

    def _root_id(self, trace: bytes) -> bytes:
        return identity.root_span_id(trace) if self._source == LIVE else identity.incident_span_id(trace, self._source)

    def _new_id(self, *of: object) -> bytes:
        return identity.incident_span_id(self.trace, self._source, *of)

    def _span(
        self, number: bytes, parent: bytes, name: str, start: float | None, end: float, error: str | None = None
    ) -> Span:
        """``error``: its message; None: the span is no error."""
        begin = end if start is None else min(start, end)
        span = Span(
            trace_id=self.trace,
            span_id=number,
            parent_span_id=parent,
            name=utf8(name),
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=_nanoseconds(begin),
            end_time_unix_nano=_nanoseconds(end),
        )
        if error is not None:
            span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=utf8(error)))
        return span

    def _group(self) -> str:
        group = self._data["process_group"]
        return "" if group is None else group_name(group["name"], group["description"])

    def _of_collective(self) -> dict[str, object]:
        data = self._data
        return {
            names.OPERATION: data["operation"],
            names.SEQUENCE_ID: data["sequence_id"],
            names.GROUP_DESCRIPTION: self._group() or None,
        }

    def _of_revision(self, revision: int) -> dict[str, object]:
        return {names.INCIDENT_CATEGORY: self._data["category"], names.INCIDENT_REVISION: revision}

    @staticmethod
    def _of_rank(facts: RankFacts) -> dict[str, object]:
        file, line, function = parts_of(facts.site)
        return {
            names.RANK: facts.rank,
            **{name: facts.resource.get(name) or None for name in _PLACE},
            names.CODE_FILE: file or None,
            names.CODE_LINE: line,
            names.CODE_FUNCTION: function or None,
        }

    def _fault(self, rank: int) -> str:
        data = self._data
        value = data["values"].get(str(rank))
        if data["field"] is not None and value is not None:
            return f"{data['field']} is {value}"[:MAX_NAME]
        return _FAULTS.get(data["category"], "differs from the others")


def parts_of(site: str) -> tuple[str, int | None, str]:
    """Return file, line and function of ``"file:line function"``; empty or None if the text has another form."""
    file, _, rest = site.rpartition(":")
    line, _, function = rest.partition(" ")
    if not file or not line.isdigit() or len(line) > 9:
        return "", None, ""
    return file, int(line), function


def place(site: str) -> str:
    """Return ``"/job/ddp.py:40 load_shard"`` as ``"load_shard ddp.py:40"``; "" if the text has another form."""
    file, line, function = parts_of(site)
    return "" if line is None else f"{function} {file.rpartition('/')[2]}:{line}".strip()


def _add_stack(span: Span, facts: RankFacts) -> None:
    """Add the rank's stack, or the exception that ended it, as an event at the span's end."""
    stack = facts.stack[:MAX_STACK] or None
    values: dict[str, object]
    if facts.error:
        kind, _, message = facts.error.partition(":")
        values = {
            names.EXCEPTION_TYPE: kind.strip()[:MAX_TEXT],
            names.EXCEPTION_MESSAGE: message.strip()[:MAX_TEXT],
            names.EXCEPTION_STACKTRACE: stack,
        }
        name = "exception"
    elif stack is not None:
        name, values = f"stack of rank {facts.rank}", {names.CODE_STACKTRACE: stack}
    else:
        return
    span.events.add(time_unix_nano=span.end_time_unix_nano, name=name, attributes=attributes(values))


def _nanoseconds(seconds: float) -> int:
    """Return a Unix time in nanoseconds; 0 if it cannot be a clock's, because files may contain any number."""
    return int(seconds * 1e9) if 0.0 < seconds < MAX_SECONDS else 0


def resource_spans(resource: Mapping[str, object], spans: Iterable[Span]) -> ResourceSpans:
    """Return spans of one resource, in otel-fr's scope."""
    scope = ScopeSpans(scope=InstrumentationScope(name=names.SCOPE_NAME), spans=spans)
    return ResourceSpans(resource=Resource(attributes=attributes(resource)), scope_spans=[scope])


def request_of(spans: Iterable[tuple[Mapping[str, object], Span]]) -> bytes:
    """Return the OTLP request of these spans, each with its resource."""
    parts = [resource_spans(resource, [span]) for resource, span in spans]
    return ExportTraceServiceRequest(resource_spans=parts).SerializeToString()
