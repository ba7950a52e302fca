"""Incident traces: the root span of each incident's trace, sent to the backends once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from otel_fr.incident import CollectorIncidentData
from otel_fr.incident_trace import incident_trace
from otel_fr_collector.forward.forwarder import Forwarder
from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.otlp.signals import TRACES
from otel_fr_collector.storage.store import Store

NOTE = "trace"
"""Name under which the store notes the trace whose root span is in the queue, by incident."""
MAX_SENT = 10_000
"""Traces remembered as sent: ten times the incidents that are kept."""


class IncidentTraces:
    """Sends root spans, once for each trace, because a span cannot be changed afterwards.

    It owns the traces whose root span was sent, and the incidents whose root span is still to be sent.

    Args:
        store: where it is noted what was sent; None: a restart forgets it.
    """

    def __init__(self, runs: Runs, forwarder: Forwarder, store: Store | None) -> None:
        self._runs = runs
        self._forwarder = forwarder
        self._store = store
        self._sent: dict[tuple[str, str], None] = {}
        """Job and trace: run ids come from clients, and no job may keep the root span of another from being sent."""
        self._missing: list[Incident] = []
        """Published by a collector that ended before their root spans were queued."""

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Take the incidents known from before a restart, oldest first."""
        noted = self._store.notes(NOTE) if self._store is not None else {}
        for incident in incidents:
            trace = incident.data["trace_id"]
            if trace is None:
                continue
            if incident.is_open and noted.get(incident.id) != trace and (incident.run.job, trace) not in self._sent:
                self._missing.append(incident)
            else:
                self._sent[incident.run.job, trace] = None
            # Its ranks' spans come when their calls end, so mostly after the restart.
            self._forwarder.keep_trace(bytes.fromhex(trace))

    def publish(self, change: IncidentChange) -> None:
        """Send the incident's root span if none was sent yet."""
        self._send(change.incident, change.data)

    def step(self) -> None:
        """Send missing root spans, each once the job's resource, by which backends group spans, is known."""
        for incident in list(self._missing):
            run = self._runs.by_id.get(incident.run)
            if incident.is_open and run is not None and not run.resource:
                continue
            self._missing.remove(incident)
            self._send(incident, incident.data)

    def _send(self, incident: Incident, data: CollectorIncidentData) -> None:
        trace = data["trace_id"]
        if trace is None or (incident.run.job, trace) in self._sent:
            return
        run = self._runs.by_id.get(incident.run)
        resource = run.resource if run is not None else {}
        request = incident_trace(data, resource, incident.started, incident.detected)
        self._forwarder.keep_trace(bytes.fromhex(trace))
        if request is None:
            return
        self._sent[incident.run.job, trace] = None
        if len(self._sent) > MAX_SENT:
            del self._sent[next(iter(self._sent))]
        self._forwarder.offer(TRACES, request, functools.partial(self._note_sent, incident.id, trace))

    def _note_sent(self, number: str, trace: str) -> None:
        if self._store is not None:
            self._store.note(NOTE, {number: trace})
