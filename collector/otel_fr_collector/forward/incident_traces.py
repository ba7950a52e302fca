"""Incident traces: each incident as spans in the trace of its collective. Each span is sent once to the backends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_fr.incident import CollectorIncidentData
from otel_fr.incident_trace import MAX_CULPRITS, MAX_WAITING, IncidentSpans, headline, request_of
from otel_fr_collector import timeline
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.forward.rank_facts import culprit_facts, is_known, waiting_facts
from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.otlp.signals import TRACES
from otel_fr_collector.storage.store import Store

NOTE = "trace"
"""Name under which the store notes the trace whose root span is in the queue, by incident."""
MAX_SENT = 10_000
"""Traces that are remembered as sent: ten times the incidents that are kept."""
MAX_CHANGES = 16
"""Changes that are sent for one trace."""

_Spans = list[tuple[Mapping[str, object], Span]]


@dataclass(slots=True)
class _Trace:
    """What was sent of one trace.

    Attributes:
        headlines: the headline last sent for each incident. The first incident has the root span.
        waiting: waiting ranks with a span.
        culprits: culprits with a span that says where they are.
        named: culprits with any span.
        changes: how many changes were sent.
    """

    headlines: dict[str, str] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    culprits: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    changes: int = 0

    def is_root(self, incident: Incident) -> bool:
        """Return whether this incident has the root span."""
        return incident.id == next(iter(self.headlines))


class IncidentTraces:
    """Sends the spans of incidents.

    Args:
        store: notes what was sent. None: a restart forgets it.
        clock: returns monotonic seconds.
    """

    def __init__(self, runs: Runs, forwarder: Forwarder, store: Store | None, clock: Callable[[], float]) -> None:
        self._runs = runs
        self._forwarder = forwarder
        self._store = store
        self._clock = clock
        self._traces: dict[tuple[str, str], _Trace] = {}
        """Sent traces, by job and trace id. The job is in the key because run ids come from clients: no job may keep
        another job's root span from being sent."""
        self._trace_of: dict[str, str] = {}
        """The trace in which each incident was sent, so that its consequences can link to it."""
        self._held: dict[str, tuple[Incident, float]] = {}
        """Incidents that must still be sent, by id, with the latest monotonic time to do so."""

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Continue incidents from before a restart or of another collector, oldest first.

        If an incident's root span was noted as sent, everything that was published counts as sent.
        """
        noted = self._store.notes(NOTE) if self._store is not None else {}
        for incident in incidents:
            data = incident.data
            if data["trace_id"] is None:
                continue
            is_sent = noted.get(incident.id) == data["trace_id"] or (incident.run.job, data["trace_id"]) in self._traces
            if incident.is_open and not is_sent:
                self._held[incident.id] = (incident, self._clock() + timeline.TRACE_HOLD)
            else:
                self._note_as_sent(incident, data)
            # The ranks' spans arrive when their calls end, so mostly after the restart.
            self._forwarder.keep_trace(bytes.fromhex(data["trace_id"]))

    def publish(self, change: IncidentChange) -> None:
        """Send what is new in an incident. A new incident is sent once it is known where its ranks are."""
        incident, data = change.incident, change.data
        if data["trace_id"] is None:
            return
        self._forwarder.keep_trace(bytes.fromhex(data["trace_id"]))
        trace = self._traces.get((incident.run.job, data["trace_id"]))
        if trace is None or incident.id not in trace.headlines:
            deadline = self._held.get(incident.id, (incident, self._clock() + timeline.TRACE_HOLD))[1]
            self._held[incident.id] = (incident, deadline)
            if change.kind is ChangeKind.RESOLVED or self._is_ready(incident):
                self._open(incident)
        elif change.kind is not ChangeKind.RESOLVED:
            self._update(incident, data, is_opened=change.kind is ChangeKind.OPENED)
        if change.kind is ChangeKind.RESOLVED:
            self._end(incident, data)

    def step(self) -> None:
        """Send incidents that are resolved, or whose time is over and whose job's resource is known.

        Backends group spans by the resource.
        """
        now = self._clock()
        for incident, deadline in list(self._held.values()):
            run = self._runs.by_id.get(incident.run)
            if incident.is_open and ((run is not None and not run.resource) or now < deadline):
                continue
            self._open(incident)

    def forget(self, run: RunId) -> None:
        """Drop a run's incidents that are held back: another collector continues them."""
        self._held = {number: held for number, held in self._held.items() if held[0].run != run}

    def finish(self) -> None:
        """Send all incidents that are held back, because the collector stops."""
        for incident, _ in list(self._held.values()):
            self._open(incident)

    # ---- what is sent

    def _is_ready(self, incident: Incident) -> bool:
        if incident.cause in self._held:
            return False
        run, data = self._runs.by_id.get(incident.run), incident.data
        return all(is_known(run, rank) for rank in (*data["culprit_ranks"][:MAX_CULPRITS], *_waiting(data)))

    def _open(self, incident: Incident) -> None:
        """Send an incident for the first time, with its ranks. The first incident of a trace is its root span."""
        del self._held[incident.id]
        data = incident.data
        if data["trace_id"] is None:
            return
        trace = self._trace(incident, data)
        is_first = not trace.headlines
        if not is_first and incident.cause is not None:
            return  # the trace already shows its cause
        now = incident.changed or incident.detected
        cause = self._trace_of.get(incident.cause or "")
        made = self._spans(incident, data, is_first=is_first, cause=cause)
        ranks = self._new_ranks(incident, data, trace, made, now)
        trace.headlines[incident.id] = headline(data)
        self._trace_of[incident.id] = data["trace_id"]
        first = min(span.start_time_unix_nano for _, span in ranks) / 1e9 if ranks else None
        spans = [(self._resource(incident), made.incident(now, first)), *ranks]
        self._offer(spans, functools.partial(self._note, incident.id, data["trace_id"]))

    def _update(self, incident: Incident, data: CollectorIncidentData, *, is_opened: bool) -> None:
        """Send what is new in an incident that was sent. ``is_opened``: it was resolved, and has opened again."""
        trace = self._trace(incident, data)
        if trace.changes >= MAX_CHANGES:
            return
        made = self._spans(incident, data, is_first=trace.is_root(incident))
        change = made.change(incident.revision, incident.changed)
        ranks = self._new_ranks(incident, data, trace, made, incident.changed, change.span_id)
        if ranks or is_opened or headline(data) != trace.headlines[incident.id]:
            trace.changes += 1
            trace.headlines[incident.id] = headline(data)
            self._offer([(self._resource(incident), change), *ranks])

    def _end(self, incident: Incident, data: CollectorIncidentData) -> None:
        trace = self._trace(incident, data)
        if incident.id not in trace.headlines or incident.resolved is None:
            return
        made = self._spans(incident, data, is_first=trace.is_root(incident))
        self._offer([(self._resource(incident), made.end(incident.revision, incident.resolved, data["resolution"]))])

    def _new_ranks(
        self,
        incident: Incident,
        data: CollectorIncidentData,
        trace: _Trace,
        made: IncidentSpans,
        now: float,
        parent: bytes | None = None,
    ) -> _Spans:
        """Make spans of the ranks that have none yet, culprits first.

        A culprit gets a second span once it is known where it is.
        """
        run = self._runs.by_id.get(incident.run)
        new = [rank for rank in _waiting(data) if rank not in trace.waiting]
        waiting = waiting_facts(run, data, new[: max(0, MAX_WAITING - len(trace.waiting))])
        trace.waiting.update(one.rank for one in waiting)
        accused = data["culprit_ranks"][:MAX_CULPRITS] if incident.cause is None else []
        culprits = []
        for one in culprit_facts(run, data, [rank for rank in accused if rank not in trace.culprits]):
            is_clear = bool(one.site or one.stack or one.error)
            if is_clear:
                trace.culprits.add(one.rank)
            if is_clear or one.rank not in trace.named:
                culprits.append(one)
            trace.named.add(one.rank)
        spans = [(one.resource, made.culprit(one, now, parent)) for one in culprits]
        return spans + [(one.resource, made.waiting(one, now, parent)) for one in waiting]

    # ---- what was sent

    def _trace(self, incident: Incident, data: CollectorIncidentData) -> _Trace:
        key = (incident.run.job, str(data["trace_id"]))
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = _Trace()
            while len(self._traces) > MAX_SENT:
                del self._traces[next(iter(self._traces))]
            while len(self._trace_of) > MAX_SENT:
                del self._trace_of[next(iter(self._trace_of))]
        return trace

    def _note_as_sent(self, incident: Incident, data: CollectorIncidentData) -> None:
        trace = self._trace(incident, data)
        trace.headlines[incident.id] = headline(data)
        trace.waiting.update(_waiting(data))
        trace.culprits.update(data["culprit_ranks"][:MAX_CULPRITS])
        self._trace_of[incident.id] = str(data["trace_id"])

    def _spans(
        self, incident: Incident, data: CollectorIncidentData, *, is_first: bool, cause: str | None = None
    ) -> IncidentSpans:
        other = None if cause is None or cause == data["trace_id"] else bytes.fromhex(cause)
        return IncidentSpans(data, incident.started, is_first=is_first, cause=other)

    def _resource(self, incident: Incident) -> Mapping[str, object]:
        run = self._runs.by_id.get(incident.run)
        return {} if run is None else run.resource

    def _offer(self, spans: _Spans, queued: Callable[[], None] | None = None) -> None:
        if spans:
            self._forwarder.offer(TRACES, request_of(spans), queued)

    def _note(self, number: str, trace: str) -> None:
        if self._store is not None:
            self._store.note(NOTE, {number: trace})


def _waiting(data: CollectorIncidentData) -> list[int]:
    return data["waiting_ranks"][:MAX_WAITING]
