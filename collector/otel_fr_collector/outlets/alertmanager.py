"""Alerts for the v2 API of Prometheus Alertmanager: fired, repeated while they are firing, and resolved."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

from otel_fr.incident import CollectorIncidentData, machines_of, told
from otel_fr.presentation import place_text, rank_list
from otel_fr.printable import printable
from otel_fr_collector import timeline
from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.outlets.outbox import Attempt, Message, Outbox, attempt_of, make_client
from otel_fr_collector.outlets.outlet import Outlet, TenantOf, links_of, owner_of
from otel_fr_collector.shares import Owner

ALERT_NAME = "TorchDistributedIncident"
BATCH = 64
"""Alerts in one request, as in Prometheus."""
MAX_PAUSE = 5.0
"""Longest pause, in seconds, before a failed request is retried. After an outage, people must be paged soon."""
_LABEL_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Alert:
    """One alert, identified by its labels.

    Attributes:
        starts: Unix time at which the first incident was detected.
        sources: the incidents that keep the alert firing, by run and id.
        page: URL of the incident on the collector's page.
        ended: Unix time of its resolution. None: it is firing.
    """

    labels: Labels
    owner: Owner
    starts: float
    sources: dict[tuple[RunId, str], Incident] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    page: str = ""
    ended: float | None = None

    def payload(self, now: float) -> dict[str, object]:
        """The alert as Alertmanager expects it (its OpenAPI specification, postableAlert)."""
        payload: dict[str, object] = {
            "labels": dict(self.labels),
            "annotations": self.annotations,
            "startsAt": _time(self.starts),
            "endsAt": _time(now + timeline.ALERT_HOLD if self.ended is None else self.ended),
        }
        if self.page:
            payload["generatorURL"] = self.page
        return payload


class Alertmanager(Outlet):
    """Posts alerts to every URL at its own pace: every replica of a cluster needs all alerts.

    Keeps only the firing alerts, at most as many as there are open incidents. A resolved alert is in the outboxes only.

    Args:
        urls: base URLs, such as ``http://alertmanager:9093``.
        labels: further labels of every alert (cluster, team).
    """

    name = "alertmanager"

    def __init__(
        self,
        urls: Iterable[str],
        metrics: Metrics,
        *,
        links: Links | None = None,
        labels: Mapping[str, str] | None = None,
        tenant_of: TenantOf = tenant_of,
    ) -> None:
        self._links = links or Links()
        self._labels = dict(labels or {})
        self._tenant_of = tenant_of
        self._firing: dict[Labels, Alert] = {}
        self._of_incident: dict[tuple[RunId, str], Labels] = {}
        self._outboxes = [self._outbox(url, metrics) for url in dict.fromkeys(urls)]
        self._repeating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start posting; needs a running event loop."""
        for outbox in self._outboxes:
            outbox.start()
        self._repeating = asyncio.get_running_loop().create_task(self._repeat())

    def publish(self, change: IncidentChange) -> None:
        """Fire or resolve an alert. A cause fires while it is open, or longer (`Incident.told_until`).

        A consequence does not fire. If it fired before it became a consequence, its alert is resolved.
        """
        if change.data["caused_by"] is None and change.kind is not ChangeKind.RESOLVED:
            self._fire(change.incident)
        else:
            self._resolve(change.incident)

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Continue alerts that fired before a restart, with the same labels and start."""
        for incident in incidents:
            if incident.is_open and incident.cause is None:
                self._fire(incident)

    def forget(self, run: RunId) -> None:
        """Forget a run's alerts without resolving them.

        Another collector posts them, or they end after `timeline.ALERT_HOLD`.
        """
        for key in [key for key in self._of_incident if key[0] == run]:
            alert = self._let_go(key)
            if alert is not None:
                for outbox in self._outboxes:
                    outbox.withdraw(alert.owner, alert.labels)

    def _fire(self, incident: Incident) -> None:
        key = (incident.run, incident.id)
        labels = self._labels_of(incident)
        if self._of_incident.get(key, labels) != labels:
            self._resolve(incident)  # it has become critical
        self._of_incident[key] = labels
        if labels not in self._firing:
            self._firing[labels] = Alert(labels, owner_of(incident, self._tenant_of), incident.detected)
        alert = self._firing[labels]
        alert.sources[key] = incident
        self._annotate(alert, incident)

    def _resolve(self, incident: Incident) -> None:
        alert = self._let_go((incident.run, incident.id))
        if alert is not None:
            alert.ended = max(time.time(), 0.0 if incident.is_open else incident.told_until)
            self._annotate(alert, incident)

    def _let_go(self, key: tuple[RunId, str]) -> Alert | None:
        """Note that an incident no longer keeps its alert firing. Return the alert if no other incident does.

        Otherwise, the alert describes one of the others from now on.
        """
        labels = self._of_incident.pop(key, None)
        if labels is None:
            return None
        alert = self._firing[labels]
        del alert.sources[key]
        if not alert.sources:
            return self._firing.pop(labels)
        self._annotate(alert, next(reversed(alert.sources.values())))
        return None

    def _annotate(self, alert: Alert, incident: Incident) -> None:
        links = links_of(self._links, incident, time.time())
        alert.annotations = annotations_of(incident.data, links)
        alert.page = links.get("page", "")
        self._tell(alert)

    def _tell(self, alert: Alert) -> None:
        """Put the alert's present state into the outbox of every replica."""
        size = sum(map(len, alert.annotations.values()))
        for outbox in self._outboxes:
            outbox.put(Message(alert.labels, alert.owner, copy.copy(alert), size, is_state=True))

    async def _repeat(self) -> None:
        """Put all firing alerts into the outboxes, every `timeline.ALERT_RESEND` seconds."""
        while True:
            await asyncio.sleep(timeline.ALERT_RESEND)
            for alert in list(self._firing.values()):
                if self._firing.get(alert.labels) is alert:
                    self._tell(alert)
                await asyncio.sleep(0)  # there may be a thousand alerts: let requests be served in between

    def _outbox(self, url: str, metrics: Metrics) -> Outbox[Alert]:
        http, path = make_client(), url.rstrip("/") + "/api/v2/alerts"

        def post(messages: Sequence[Message[Alert]]) -> Attempt:
            now = time.time()
            body = json.dumps([message.content.payload(now) for message in messages]).encode()
            # Alertmanager answers 400 if one alert of a request is not valid, and accepts the others (api/v2/api.go).
            attempt = attempt_of(http.request("POST", path, {"Content-Type": "application/json"}, body))
            return attempt._replace(retry_after=None)  # it might be longer than alerts last

        return Outbox(f"{self.name} {urlsplit(url).hostname}", post, metrics, at_once=BATCH, max_pause=MAX_PAUSE)

    def _labels_of(self, incident: Incident) -> Labels:
        """The labels that identify the alert. Each has few values; sequence numbers and ranks are annotations."""
        return tuple({**self._labels, "alertname": ALERT_NAME, **incident.labels}.items())

    async def stop(self, seconds: float) -> None:
        """Post pending alerts, within ``seconds`` seconds. Firing alerts are not resolved: their faults still exist."""
        if self._repeating is not None:
            self._repeating.cancel()
        await asyncio.gather(*(outbox.stop(seconds) for outbox in self._outboxes))


def parse_label(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``.

    Raises:
        ValueError: the text has another form, Alertmanager does not accept the name, or otel-fr sets the label itself.
    """
    name, equals, value = text.partition("=")
    if not equals or not value or not _LABEL_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not NAME=VALUE with a name of letters, digits and _")
    if name in ("alertname", "severity", "job_id", "category", "process_group", "host"):
        raise ValueError(f"the label {name} is reserved: otel-fr sets it")
    return name, value


def annotations_of(data: CollectorIncidentData, links: Mapping[str, str]) -> dict[str, str]:
    """The annotations of an incident's alert. Links are named ``runbook_url``, ``trace_url`` and so on."""
    sites, culprits, waiting = data["call_sites"], data["culprit_ranks"], data["waiting_ranks"]
    places = data["places"]

    def described(ranks: Iterable[int], verb: str) -> list[str]:
        shown = {rank: f" ({place_text(**places[str(rank)])})" if str(rank) in places else "" for rank in ranks}
        return [f"rank {rank}{place} {verb} {sites[str(rank)]}" for rank, place in shown.items() if str(rank) in sites]

    # The details follow the culprits, because "it" in them means a culprit.
    where = [*described(culprits[:4], "at"), *data["details"], *described(waiting[:4], "waits at")]
    texts = {
        "summary": told(data),
        "description": "; ".join(where) or data["summary"],
        "what_to_do": data["what_to_do"],
        "hosts": ", ".join(machines_of(data)) or None,
        "waiting_since": data["waiting_since"],
        "job": data["job_title"],
        "category": data["category"],
        "culprit_ranks": rank_list(culprits),
        "waiting_ranks": rank_list(waiting),
        "operation": data["operation"],
        "sequence_id": data["sequence_id"],
        "attempt": data["attempt"],
        "incident_id": data["id"],
        "trace_id": data["trace_id"],
        **{f"{name}_url": url for name, url in links.items()},
    }
    return {name: printable(str(value)) for name, value in texts.items() if value is not None}


def _time(seconds: float) -> str:
    return (datetime.fromtimestamp(0, tz=timezone.utc) + timedelta(seconds=seconds)).isoformat()
