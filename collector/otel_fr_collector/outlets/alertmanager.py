"""Alerts for the v2 API of Prometheus Alertmanager: fired, repeated while they hold, and resolved."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from otel_fr.incident import CollectorIncidentData, machines_of, told
from otel_fr.presentation import place_text, rank_list
from otel_fr.printable import printable
from otel_fr_collector import timeline
from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.outlets.alert_lane import Alert, AlertLane, Labels
from otel_fr_collector.outlets.outlet import Outlet, TenantOf, links_of, owner_of
from otel_fr_collector.shares import Holdings, Owner
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

ALERT_NAME = "TorchDistributedIncident"
MAX_ALERTS = 1_000
"""Alerts held; beyond it some are dropped (`otel_fr_collector.shares`)."""
_LABEL_NAME = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")


class Alertmanager(Outlet):
    """Posts to every URL (every replica of a cluster needs them), to each at its own pace.

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
        tenant_of: TenantOf = tenant_of,
    ) -> None:
        self._links = links or Links()
        self._labels = dict(labels or {})
        self._tenant_of = tenant_of
        self._metrics = metrics
        self._alerts: dict[Labels, Alert] = {}
        self._by_owner: dict[Owner, dict[Labels, Alert]] = {}
        self._holdings = Holdings()
        self._of_incident: dict[tuple[object, str], Labels] = {}
        self._changes = 0
        self._log = Throttle()
        self._lanes = [AlertLane(url, metrics, self._held, self._delivered) for url in dict.fromkeys(urls)]
        self._tasks: set[asyncio.Task[None]] = set()
        metrics.watch_alerts()

    def start(self) -> None:
        """Start posting; needs a running event loop."""
        loop = asyncio.get_running_loop()
        self._tasks = {loop.create_task(lane.run()) for lane in self._lanes}

    def publish(self, change: IncidentChange) -> None:
        """A cause fires while it is open, or longer (`Incident.told_until`). A consequence does not, even if it did."""
        if change.data["caused_by"] is None and change.kind is not ChangeKind.RESOLVED:
            self._fire(change.incident)
        else:
            self._resolve(change.incident)

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Continue the alerts fired before the restart, with the same labels and start."""
        for incident in incidents:
            if incident.is_open and incident.cause is None:
                self._fire(incident)

    def forget(self, run: RunId) -> None:
        """The alerts continue: another collector posts them, or they end after `timeline.ALERT_HOLD`."""
        for key in [key for key in self._of_incident if key[0] == run]:
            alert = self._alerts.get(self._of_incident.pop(key))
            if alert is not None:
                alert.sources.discard(key)
                if not alert.sources:
                    self._drop(alert)

    def _fire(self, incident: Incident) -> None:
        if not self._lanes:
            return
        key = (incident.run, incident.id)
        labels = self._of_incident.get(key) or self._labels_of(incident)
        alert = self._alerts.get(labels)
        if alert is None or alert.ended is not None:
            owner = owner_of(incident, self._tenant_of)
            if alert is None and not self._make_room(owner):
                return
            if alert is not None:
                self._drop(alert)
            alert = self._keep(Alert(labels, owner, incident.detected))
        self._of_incident[key] = labels
        alert.sources.add(key)
        self._annotate(alert, incident)

    def _resolve(self, incident: Incident) -> None:
        key = (incident.run, incident.id)
        labels = self._of_incident.pop(key, None)
        alert = self._alerts.get(labels) if labels is not None else None
        if alert is None:
            return
        alert.sources.discard(key)
        if not alert.sources:
            alert.ended = max(time.time(), 0.0 if incident.is_open else incident.told_until)
            self._annotate(alert, incident)

    def _annotate(self, alert: Alert, incident: Incident) -> None:
        links = links_of(self._links, incident, time.time())
        alert.annotations = annotations_of(incident.data, links)
        alert.page = links.get("page", "")
        self._changes += 1
        alert.change = self._changes
        for lane in self._lanes:
            lane.wake()

    def _make_room(self, newcomer: Owner) -> bool:
        """Make room for one more alert; False: there is none for this one."""
        if len(self._alerts) >= MAX_ALERTS:
            self._drop_ended()
        if len(self._alerts) < MAX_ALERTS:
            return True
        loser = self._holdings.gives_way(newcomer)
        self._metrics.alerts_dropped.inc()
        if self._log.allows():
            _log.error("limit of %d alerts reached: dropping an alert of job %r", MAX_ALERTS, (loser or newcomer).job)
        if loser is None:
            return False
        self._drop(next(reversed(self._by_owner[loser].values())))
        return True

    def _keep(self, alert: Alert) -> Alert:
        self._alerts[alert.labels] = self._by_owner.setdefault(alert.owner, {})[alert.labels] = alert
        self._holdings.add(alert.owner)
        return alert

    def _drop_ended(self) -> None:
        """Drop alerts that ended so long ago that every replica has resolved them on its own."""
        before = time.time() - timeline.ALERT_HOLD
        for alert in [alert for alert in self._alerts.values() if alert.ended is not None and alert.ended < before]:
            self._drop(alert)

    def _drop(self, alert: Alert) -> None:
        del self._alerts[alert.labels]
        own = self._by_owner[alert.owner]
        del own[alert.labels]
        if not own:
            del self._by_owner[alert.owner]
        self._holdings.add(alert.owner, -1)
        for key in alert.sources:
            self._of_incident.pop(key, None)

    def _held(self) -> list[Alert]:
        """What a replica is to know."""
        self._drop_ended()
        return list(self._alerts.values())

    def _delivered(self, url: str, alerts: Sequence[Alert]) -> None:
        """A replica has accepted resolved alerts; those that all have accepted are dropped."""
        for alert in alerts:
            alert.resolved_on.add(url)
            if len(alert.resolved_on) == len(self._lanes) and self._alerts.get(alert.labels) is alert:
                self._drop(alert)

    def _labels_of(self, incident: Incident) -> Labels:
        """The labels that identify the alert: few values each; sequence numbers and ranks are annotations."""
        return tuple({**self._labels, "alertname": ALERT_NAME, **incident.labels}.items())

    async def stop(self, seconds: float) -> None:
        """Post what is pending, within ``seconds`` seconds. Firing alerts stay firing: their faults still exist."""
        for lane in self._lanes:
            lane.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()


def parse_label(text: str) -> tuple[str, str]:
    """``NAME=VALUE``.

    Raises:
        ValueError: it has another form, Alertmanager does not accept the name, or otel-fr sets this label itself.
    """
    name, equals, value = text.partition("=")
    if not equals or not value or not _LABEL_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not NAME=VALUE with a name of letters, digits and _")
    if name in ("alertname", "severity", "job_id", "category", "process_group", "host"):
        raise ValueError(f"the label {name} is reserved: otel-fr sets it")
    return name, value


def annotations_of(data: CollectorIncidentData, links: Mapping[str, str]) -> dict[str, str]:
    """The alert's annotations in the latest state; links are named ``runbook_url``, ``trace_url`` and so on."""
    sites, culprits, waiting = data["call_sites"], data["culprit_ranks"], data["waiting_ranks"]
    places = data["places"]

    def described(ranks: Iterable[int], verb: str) -> list[str]:
        shown = {rank: f" ({place_text(**places[str(rank)])})" if str(rank) in places else "" for rank in ranks}
        return [f"rank {rank}{place} {verb} {sites[str(rank)]}" for rank, place in shown.items() if str(rank) in sites]

    # The details follow the culprits, for "it" in them is a culprit.
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
