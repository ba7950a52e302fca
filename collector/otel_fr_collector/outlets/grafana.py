"""Incidents as Grafana annotations: a mark on every dashboard when an incident opens, a region once it is resolved.

The API is Grafana's annotations HTTP API (grafana.com/docs/grafana/latest/developers/http_api/annotations).
"""

from __future__ import annotations

import html
import json
from urllib.parse import urlencode, urlsplit

from otel_fr.incident import told
from otel_fr.printable import one_line, printable
from otel_fr_collector.incidents.incident import ChangeKind, Incident
from otel_fr_collector.network.http_client import Answer
from otel_fr_collector.outlets.changes import Change
from otel_fr_collector.outlets.outbox import Attempt, Outcome, attempt_of, make_client

TAG = "otel-fr"
"""Tag of all annotations of otel-fr, by which a dashboard's annotation query filters."""
MAX_KNOWN = 2_000


class Grafana:
    """A receiver (`otel_fr_collector.outlets.changes.Receiver`) that makes an annotation for each cause.

    Args:
        url: base URL, such as ``http://grafana:3000``.
        token: a token of a service account that may write annotations. Empty: none is sent.
    """

    noted_as = "grafana"
    replaced = frozenset(ChangeKind)

    def __init__(self, url: str, token: str) -> None:
        self.name = f"grafana {urlsplit(url).hostname}"
        self._url = url.rstrip("/") + "/api/annotations"
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ids: dict[str, int | None] = {}
        """Ids of the annotations, by incident. None: it may not exist, or was made before a restart or elsewhere."""
        self._http = make_client()

    def wants(self, incident: Incident, *, was_told: bool) -> bool:
        """Causes are wanted. A cause that becomes a consequence keeps its annotation, which ends with the incident."""
        if was_told or incident.cause is None:
            self._ids.setdefault(incident.id, None)
            for oldest in list(self._ids)[:-MAX_KNOWN]:
                self._ids.pop(oldest, None)
        return incident.id in self._ids

    def body(self, _: ChangeKind, incident: Incident, links: dict[str, str]) -> dict[str, object]:
        body: dict[str, object] = {
            "time": int((incident.started or incident.detected) * 1000),
            "tags": tags_of(incident),
            "text": text_of(incident, links),
        }
        if incident.resolved is not None:
            body["timeEnd"] = int(incident.resolved * 1000)
        return body

    def post(self, change: Change) -> Attempt:
        number = self._ids.get(change.incident)
        if number is None:
            # An attempt whose response was lost, or another collector, may have made the annotation.
            query = urlencode([("tags", TAG), ("tags", f"incident:{change.incident}"), ("limit", "1")])
            answer = self._request("GET", f"{self._url}?{query}")
            attempt = attempt_of(answer)
            if attempt.outcome is Outcome.FAILED:
                return attempt
            number = _found(answer)
        if number is None:
            answer = self._request("POST", self._url, change.body)
            attempt = attempt_of(answer)
            if attempt.outcome is not Outcome.SENT:
                return attempt
            number = int(json.loads(answer.body)["id"])
        else:
            answer = self._request("PATCH", f"{self._url}/{number}", change.body)
            is_deleted = answer.status == 404  # by a user
            attempt = Attempt(Outcome.SENT) if is_deleted else attempt_of(answer)
            if attempt.outcome is not Outcome.SENT:
                return attempt
        self._ids[change.incident] = number
        return attempt

    def _request(self, method: str, url: str, body: bytes | None = None) -> Answer:
        return self._http.request(method, url, self._headers, body)


def _found(answer: Answer) -> int | None:
    """The id of the annotation that a query has found."""
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
