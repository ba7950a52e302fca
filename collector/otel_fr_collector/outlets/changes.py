"""Sends each incident change once to a receiver."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange, is_told
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.outlets.outbox import Attempt, Message, Outbox, Outcome
from otel_fr_collector.outlets.outlet import Outlet, TenantOf, links_of, owner_of
from otel_fr_collector.storage.store import Store

QUEUED = "/queued"
"""Suffix of a receiver's name in the store. Under it are the incidents that were queued for it, sent or not."""


class Change(NamedTuple):
    """One change of an incident, as a receiver gets it.

    Attributes:
        incident: the incident's id.
        mark: identifies the change (`Incident.mark`). It is the same for each attempt and collector.
        body: JSON.
    """

    incident: str
    mark: str
    body: bytes


class Receiver(Protocol):
    """A receiver of changes.

    Attributes:
        name: as in `Outlet`.
        noted_as: the name under which the store notes what was sent.
        replaced: the kinds of changes that need not be sent if a later change of the same incident is waiting.
    """

    name: str
    noted_as: str
    replaced: frozenset[ChangeKind]

    def wants(self, incident: Incident, *, was_told: bool) -> bool:
        """Return whether to send changes of the incident. ``was_told``: one was queued for the receiver before."""

    def body(self, kind: ChangeKind, incident: Incident, links: dict[str, str]) -> dict[str, object]:
        """The body of the message about a change."""

    def post(self, change: Change) -> Attempt:
        """Make one attempt to send a change. Called in the outbox's thread.

        Raises:
            HttpError: there was no response.
        """


class Changes(Outlet):
    """Sends changes to one receiver. The changes of one job are in order (docs/guide/alerts.md).

    Args:
        store: remembers what was sent, so that neither a restart nor another collector repeats anything.
    """

    def __init__(
        self,
        receiver: Receiver,
        metrics: Metrics,
        *,
        links: Links | None = None,
        store: Store | None = None,
        tenant_of: TenantOf = tenant_of,
    ) -> None:
        self.name = receiver.name
        self._receiver = receiver
        self._links = links or Links()
        self._store = store
        self._tenant_of = tenant_of
        self._outbox: Outbox[Change] = Outbox(self.name, self._send, metrics)

    def start(self) -> None:
        self._outbox.start()

    def publish(self, change: IncidentChange) -> None:
        if self._receiver.wants(change.incident, was_told=False):
            self._put(change.kind, change.incident)

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Send what was not sent before the restart."""
        if self._store is None:
            return
        noted = self._store.notes(self._receiver.noted_as)
        queued = self._store.notes(self._receiver.noted_as + QUEUED)
        for incident in incidents:
            kind = ChangeKind.UPDATED if incident.is_open else ChangeKind.RESOLVED
            note, opened, mark = noted.get(incident.id), incident.mark(ChangeKind.OPENED), incident.mark(kind)
            was_queued = note is not None or incident.id in queued
            if not self._receiver.wants(incident, was_told=was_queued) or is_told(note, mark):
                continue
            if not was_queued and not incident.is_open:  # a new receiver gets no incidents that are over
                continue
            if incident.is_open and not is_told(note, opened):
                # If it was sent and only the note was lost with the collector, the receiver recognises the id.
                self._put(ChangeKind.OPENED, incident)
                if mark == opened:
                    continue
            self._put(kind, incident)

    async def stop(self, seconds: float) -> None:
        await self._outbox.stop(seconds)

    def _put(self, kind: ChangeKind, incident: Incident) -> None:
        if self._store is not None:
            # A separate row: another collector may have locked the row that notes what was sent.
            self._store.note(self._receiver.noted_as + QUEUED, {incident.id: ""})
        body = self._receiver.body(kind, incident, links_of(self._links, incident, time.time()))
        change = Change(incident.id, incident.mark(kind), json.dumps(body).encode())
        owner = owner_of(incident, self._tenant_of)
        is_state = kind in self._receiver.replaced
        self._outbox.put(Message(incident.id, owner, change, len(change.body), is_state))

    def _send(self, messages: Sequence[Message[Change]]) -> Attempt:
        """Make one attempt to send a change, unless a collector has already sent it."""
        (change,) = [message.content for message in messages]
        if self._store is None:
            return self._receiver.post(change)
        with self._store.turn(self._receiver.noted_as, change.incident, change.mark) as turn:
            if turn.is_told:
                return Attempt(Outcome.SENT)
            attempt = self._receiver.post(change)
            turn.is_told = attempt.outcome is not Outcome.FAILED
            return attempt
