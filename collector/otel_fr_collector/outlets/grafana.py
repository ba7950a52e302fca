"""Incidents as Grafana annotations: a mark on every dashboard when one opens, a region once it is resolved.

The API is Grafana's annotations HTTP API (grafana.com/docs/grafana/latest/developers/http_api/annotations).
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from otel_fr.incident import told
from otel_fr.printable import one_line, printable
from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange, is_told
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_client import Answer
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.outlets.delivery import Attempt, DeliveryQueue, Outcome, attempt_of, deliver_once, make_client
from otel_fr_collector.outlets.outlet import Outlet, TenantOf, links_of, owner_of
from otel_fr_collector.storage.store import Store

OUTLET = "grafana"
TAG = "otel-fr"
"""Tag of all our annotations, by which a dashboard's annotation query filters."""
MAX_KNOWN = 2_000


@dataclass(frozen=True)
class _Mark:
    """The annotation of an incident in its current state."""

    incident: str
    mark: str
    body: dict[str, object]


class Grafana(Outlet):
    """One Grafana. Only causes are annotated, no consequences.

    Args:
        url: base, e.g. ``http://grafana:3000``. token: of a service account that may write annotations.
        store: remembers what was delivered, so that neither a restart nor another collector repeats anything.
    """

    def __init__(
        self,
        url: str,
        token: str,
        metrics: Metrics,
        *,
        links: Links | None = None,
        store: Store | None = None,
        tenant_of: TenantOf = tenant_of,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._url = url.rstrip("/") + "/api/annotations"
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._links = links or Links()
        self._store = store
        self._wall = wall
        self.name = f"grafana {urlsplit(url).hostname}"
        self._ids: dict[str, int | None] = {}
        """Of the annotations, by incident; None: it was made before the restart, or by another collector."""
        self._tenant_of = tenant_of
        self._http = make_client()
        self._queue: DeliveryQueue[_Mark] = DeliveryQueue(self.name, self._deliver, metrics)

    def start(self) -> None:
        self._queue.start()

    def publish(self, change: IncidentChange) -> None:
        # A cause that becomes a consequence keeps its annotation, which ends with it.
        if change.incident.cause is None or change.incident.id in self._ids:
            self._put(change.incident, change.kind)

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Continue the annotations made before the restart, and deliver what was not delivered then."""
        if self._store is None:
            return
        noted = self._store.notes(OUTLET)
        for incident in incidents:
            kind = ChangeKind.UPDATED if incident.is_open else ChangeKind.RESOLVED
            told = noted.get(incident.id)
            if told is not None:
                self._ids.setdefault(incident.id, None)
            behind = incident.is_open if told is None else not is_told(told, incident.mark(kind))
            if behind and (told is not None or incident.cause is None):
                self._put(incident, kind)

    async def stop(self, seconds: float) -> None:
        await self._queue.stop(seconds)

    def _put(self, incident: Incident, kind: ChangeKind) -> None:
        text = text_of(incident, links_of(self._links, incident, self._wall()))
        body: dict[str, object] = {
            "time": int((incident.started or incident.detected) * 1000),
            "tags": tags_of(incident),
            "text": text,
        }
        if incident.resolved is not None:
            body["timeEnd"] = int(incident.resolved * 1000)
        mark = _Mark(incident.id, incident.mark(kind), body)
        owner = owner_of(incident, self._tenant_of)
        self._queue.put(mark, owner, len(text), lambda old: old.incident == mark.incident)

    def _deliver(self, mark: _Mark) -> Attempt:
        attempt = deliver_once(self._store, OUTLET, mark.incident, mark.mark, lambda: self._show(mark))
        if attempt.outcome is Outcome.SENT:
            self._ids.setdefault(mark.incident, None)
        return attempt

    def _show(self, mark: _Mark) -> Attempt:
        number = self._ids.get(mark.incident)
        if number is None:
            # An attempt whose response was lost may have made it, or another collector.
            query = urlencode([("tags", TAG), ("tags", f"incident:{mark.incident}"), ("limit", "1")])
            answer = self._request("GET", f"{self._url}?{query}", None)
            attempt = attempt_of(answer)
            if attempt.outcome is Outcome.FAILED:
                return attempt
            number = _found(answer)
        if number is None:
            answer = self._request("POST", self._url, mark.body)
            attempt = attempt_of(answer)
            if attempt.outcome is not Outcome.SENT:
                return attempt
            number = int(json.loads(answer.body)["id"])
        else:
            answer = self._request("PATCH", f"{self._url}/{number}", mark.body)
            is_deleted = answer.status == 404  # by a user
            attempt = Attempt(Outcome.SENT) if is_deleted else attempt_of(answer)
            if attempt.outcome is not Outcome.SENT:
                return attempt
        self._ids[mark.incident] = number
        while len(self._ids) > MAX_KNOWN:
            del self._ids[next(iter(self._ids))]
        return attempt

    def _request(self, method: str, url: str, body: dict[str, object] | None) -> Answer:
        return self._http.request(method, url, self._headers, None if body is None else json.dumps(body).encode())


def _found(answer: Answer) -> int | None:
    """The annotation that a query has found."""
    found = json.loads(answer.body) if answer.status < 300 else []
    return int(found[0]["id"]) if found else None


def tags_of(incident: Incident) -> list[str]:
    """``otel-fr``, the category, the job, and the incident's id."""
    return [TAG, incident.finding.category.value, f"job:{one_line(incident.run.job)}"[:100], f"incident:{incident.id}"]


def text_of(incident: Incident, links: dict[str, str]) -> str:
    """The summary, what to do, and the links. Grafana shows HTML, so everything that comes from a job is escaped."""
    action = incident.data["what_to_do"]
    lines = [html.escape(printable(text)) for text in (told(incident.data), action) if text]
    lines += [f'<a href="{html.escape(url)}">{name}</a>' for name, url in links.items()]
    return "<br>".join(lines)
