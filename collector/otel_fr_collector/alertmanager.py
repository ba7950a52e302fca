"""Alerts for Prometheus Alertmanager's v2 API: fired, sent again while they hold, resolved. Never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import urllib3

from otel_fr.identity import encode_ranks
from otel_fr_collector.metrics import Metrics, group_label

_log = logging.getLogger(__name__)

ALERT_NAME = "TorchDistributedIncident"
RESEND = 60.0
"""Seconds between two posts of a firing alert; Alertmanager's clients are told 30 s to 3 minutes."""
HOLD = 4 * RESEND
"""Seconds after which Alertmanager resolves an alert that is no longer sent (as Prometheus does: four intervals)."""
RETRY = 5.0
"""Seconds before a failed post is tried again."""
TIMEOUT = urllib3.Timeout(connect=1.5, read=3.0)
LOG_EVERY = 60.0
MAX_ALERTS = 1_000

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Alert:
    """One label set. ``sources``: the incidents that hold it firing. ``ended``: Unix time of its resolution."""

    labels: Labels
    starts: float
    sources: set[str] = field(default_factory=set)
    annotations: dict[str, str] = field(default_factory=dict)
    ended: float | None = None


class Alertmanager:
    """Posts to every URL (all replicas of a cluster must be told).

    Args:
        urls: bases, e.g. ``http://alertmanager:9093``.
    """

    def __init__(self, urls: Iterable[str], metrics: Metrics) -> None:
        self._urls = [url.rstrip("/") + "/api/v2/alerts" for url in urls]
        self._metrics = metrics
        self._alerts: dict[Labels, _Alert] = {}
        self._of_incident: dict[str, Labels] = {}
        self._http = urllib3.PoolManager(retries=False, timeout=TIMEOUT)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._logged = float("-inf")

    def start(self) -> None:
        """Begin to post; needs a running event loop."""
        if self._urls:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def fire(self, data: dict[str, object], wall: float) -> None:
        """The incident (a cause) is open, or has changed. Its labels stay those it was opened with."""
        if not self._urls:
            return
        number = str(data["id"])
        labels = self._of_incident.setdefault(number, labels_of(data))
        alert = self._alerts.get(labels)
        if alert is None or alert.ended is not None:
            if alert is None and len(self._alerts) >= MAX_ALERTS:
                self._of_incident.pop(number)
                return
            alert = self._alerts[labels] = _Alert(labels, wall)
        alert.sources.add(number)
        alert.annotations = annotations_of(data)
        self._wake.set()

    def resolve(self, data: dict[str, object], wall: float) -> None:
        """The incident is over, or has turned out to be another's consequence."""
        labels = self._of_incident.pop(str(data["id"]), None)
        alert = self._alerts.get(labels) if labels is not None else None
        if alert is None:
            return
        alert.sources.discard(str(data["id"]))
        if not alert.sources:
            alert.ended = wall
            self._wake.set()

    async def stop(self, seconds: float) -> None:
        """Post what is not posted yet, for at most so long. Firing alerts stay: the fault outlives the collector."""
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
        self._metrics.alerts.labels("failed" if problem else "sent").inc()
        now = time.monotonic()
        if problem and now - self._logged >= LOG_EVERY:
            self._logged = now
            _log.warning("no alert could be posted to %s: %s", url, problem)
        return not problem


def labels_of(data: dict[str, object]) -> Labels:
    """What identifies the alert: few values, valid names; sequence numbers and ranks are annotations."""
    category = str(data["category"])
    labels = {
        "alertname": ALERT_NAME,
        "severity": "warning" if category == "straggler" else "critical",
        "job_id": str(data["job"] or ""),
        "category": category,
        "process_group": group_label(data["process_group"]),
    }
    return tuple((name, value) for name, value in labels.items() if value)


def annotations_of(data: dict[str, object]) -> dict[str, str]:
    """What a person needs to know, as of the latest state."""
    sites = data["call_sites"] if isinstance(data["call_sites"], dict) else {}
    culprits = data["culprit_ranks"] if isinstance(data["culprit_ranks"], list) else []
    waiting = data["waiting_ranks"] if isinstance(data["waiting_ranks"], list) else []
    where = [f"rank {rank} at {sites[str(rank)]}" for rank in [*culprits[:4], *waiting[:4]] if str(rank) in sites]
    texts = {
        "summary": data["summary"],
        "description": "; ".join(where) or data["summary"],
        "category": data["category"],
        "culprit_ranks": encode_ranks(sorted(culprits)),
        "waiting_ranks": encode_ranks(sorted(waiting)),
        "operation": data["operation"],
        "sequence_id": data["sequence_id"],
        "attempt": data["attempt"],
        "incident_id": data["id"],
        "trace_id": data["trace_id"],
    }
    return {name: str(value) for name, value in texts.items() if value is not None}


def _payload(alert: _Alert, now: float) -> dict[str, object]:
    ends = now + HOLD if alert.ended is None else alert.ended
    return {
        "labels": dict(alert.labels),
        "annotations": alert.annotations,
        "startsAt": _time(alert.starts),
        "endsAt": _time(ends),
    }


def _time(seconds: float) -> str:
    return (datetime.fromtimestamp(0, tz=timezone.utc) + timedelta(seconds=seconds)).isoformat()
