"""Alerts for the v2 API of Prometheus Alertmanager: fired, repeated while they hold, and resolved."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import urllib3

from otel_fr.incident import CollectorIncidentData
from otel_fr.presentation import rank_list
from otel_fr_collector.incidents.book import Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets.outlet import links_of

_log = logging.getLogger(__name__)

ALERT_NAME = "TorchDistributedIncident"
RESEND = 60.0
"""Seconds between two posts of a firing alert; Alertmanager asks its clients for 30 s to 3 minutes."""
HOLD = 4 * RESEND
"""Seconds after which Alertmanager resolves an alert that is no longer posted (four intervals, as in Prometheus)."""
RETRY = 5.0
"""Seconds before a failed post is retried."""
TIMEOUT = urllib3.Timeout(connect=1.5, read=3.0)
LOG_EVERY = 60.0
MAX_ALERTS = 1_000
_LABEL_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Alert:
    """One label set. ``sources``: the incidents that hold it firing. ``ended``: Unix time of its resolution."""

    labels: Labels
    starts: float
    sources: set[str] = field(default_factory=set)
    annotations: dict[str, str] = field(default_factory=dict)
    page: str = ""
    ended: float | None = None


class Alertmanager:
    """Posts to every URL (every replica of a cluster needs them).

    Args:
        urls: bases, e.g. ``http://alertmanager:9093``.
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
    ) -> None:
        self._urls = [url.rstrip("/") + "/api/v2/alerts" for url in urls]
        self._links = links or Links()
        self._labels = dict(labels or {})
        self._metrics = metrics
        self._alerts: dict[Labels, _Alert] = {}
        self._of_incident: dict[str, Labels] = {}
        self._http = urllib3.PoolManager(retries=False, timeout=TIMEOUT)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._logged = float("-inf")
        metrics.watch_alerts(lambda: len(self._alerts), MAX_ALERTS)

    def start(self) -> None:
        """Start posting; needs a running event loop."""
        if self._urls:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def publish(self, change: IncidentChange) -> None:
        """A cause fires while it is open. A consequence does not fire, not even if it was a cause before."""
        if change.incident.cause is None and change.incident.is_open:
            self._fire(change.incident)
        else:
            self._resolve(change.incident)

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Continue the alerts fired before the restart, with the same labels and start."""
        for incident in incidents:
            if incident.is_open and incident.cause is None:
                self._fire(incident)

    def _fire(self, incident: Incident) -> None:
        if not self._urls:
            return
        labels = self._of_incident.setdefault(incident.id, self._labels_of(incident))
        alert = self._alerts.get(labels)
        if alert is None or alert.ended is not None:
            if alert is None and len(self._alerts) >= MAX_ALERTS:
                self._of_incident.pop(incident.id)
                return
            alert = self._alerts[labels] = _Alert(labels, incident.detected)
        alert.sources.add(incident.id)
        links = links_of(self._links, incident, time.time())
        alert.annotations = annotations_of(incident.data, links)
        alert.page = links.get("page", "")
        self._wake.set()

    def _resolve(self, incident: Incident) -> None:
        labels = self._of_incident.pop(incident.id, None)
        alert = self._alerts.get(labels) if labels is not None else None
        if alert is None:
            return
        alert.sources.discard(incident.id)
        if not alert.sources:
            alert.ended = time.time()
            self._wake.set()

    def _labels_of(self, incident: Incident) -> Labels:
        """The labels that identify the alert: few values each; sequence numbers and ranks are annotations."""
        return tuple({**self._labels, "alertname": ALERT_NAME, **incident.labels}.items())

    async def stop(self, seconds: float) -> None:
        """Post what is pending, within ``seconds`` seconds. Firing alerts stay firing: their faults still exist."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
        self._http.clear()

    async def _run(self) -> None:
        pause = RESEND
        while not self._stopping or self._wake.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()
            ok = True
            if self._alerts:
                ended = [labels for labels, alert in self._alerts.items() if alert.ended is not None]
                body = json.dumps([_payload(alert, time.time()) for alert in self._alerts.values()]).encode()
                results = await asyncio.gather(*(asyncio.to_thread(self._post, url, body) for url in self._urls))
                ok = all(results)
                if ok:
                    for labels in ended:
                        alert = self._alerts.get(labels)
                        if alert is not None and alert.ended is not None:
                            del self._alerts[labels]
            pause = RESEND if ok else RETRY

    def _post(self, url: str, body: bytes) -> bool:
        try:
            headers = {"Content-Type": "application/json"}
            response = self._http.request("POST", url, body=body, headers=headers)
            problem = "" if response.status < 300 else f"status {response.status}: {response.data[:200]!r}"
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            problem = str(error)
        self._metrics.alert_posts.labels("failed" if problem else "sent").inc()
        now = time.monotonic()
        if problem and now - self._logged >= LOG_EVERY:
            self._logged = now
            _log.warning("alerts could not be posted to %s: %s", url, problem)
        return not problem


def parse_label(text: str) -> tuple[str, str]:
    """``NAME=VALUE``.

    Raises:
        ValueError: it has another form, Alertmanager does not accept the name, or otel-fr sets this label itself.
    """
    name, equals, value = text.partition("=")
    if not equals or not value or not _LABEL_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not NAME=VALUE with a name of letters, digits and _")
    if name in ("alertname", "severity", "job_id", "category", "process_group"):
        raise ValueError(f"the label {name} is set by otel-fr itself")
    return name, value


def annotations_of(data: CollectorIncidentData, links: Mapping[str, str]) -> dict[str, str]:
    """The alert's annotations in the latest state; links are named ``runbook_url``, ``trace_url`` and so on."""
    sites, culprits, waiting = data["call_sites"], data["culprit_ranks"], data["waiting_ranks"]
    where = [f"rank {rank} at {sites[str(rank)]}" for rank in [*culprits[:4], *waiting[:4]] if str(rank) in sites]
    texts = {
        "summary": data["summary"],
        "description": "; ".join(where) or data["summary"],
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
    return {name: str(value) for name, value in texts.items() if value is not None}


def _payload(alert: _Alert, now: float) -> dict[str, object]:
    ends = now + HOLD if alert.ended is None else alert.ended
    payload: dict[str, object] = {
        "labels": dict(alert.labels),
        "annotations": alert.annotations,
        "startsAt": _time(alert.starts),
        "endsAt": _time(ends),
    }
    if alert.page:
        payload["generatorURL"] = alert.page
    return payload


def _time(seconds: float) -> str:
    return (datetime.fromtimestamp(0, tz=timezone.utc) + timedelta(seconds=seconds)).isoformat()
