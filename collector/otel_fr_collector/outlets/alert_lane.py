"""The way of all alerts to one Alertmanager: with its own thread, pace and failures, so that none waits for another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from otel_fr.redaction import clean
from otel_fr_collector import timeline
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.http_client import HttpClient, HttpError, Workers
from otel_fr_collector.shares import Owner
from otel_fr_collector.throttle import Throttle

_log = logging.getLogger(__name__)

RETRY = 5.0
"""Seconds before a failed post is retried."""
CONNECT_SECONDS, TOTAL_SECONDS = 1.5, 5.0
BATCH = 64
"""Alerts in one post, as in Prometheus: the body is made on the event loop."""


Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Alert:
    """One label set.

    Attributes:
        change: number of its last change, over all alerts.
        sources: the incidents that hold it firing, by run and id.
        ended: Unix time of its resolution; None: it fires.
        resolved_on: the replicas that know of the resolution.
    """

    labels: Labels
    owner: Owner
    starts: float
    change: int = 0
    sources: set[tuple[object, str]] = field(default_factory=set)
    annotations: dict[str, str] = field(default_factory=dict)
    page: str = ""
    ended: float | None = None
    resolved_on: set[str] = field(default_factory=set)

    def payload(self, now: float) -> dict[str, object]:
        """Alertmanager's form of it (its OpenAPI specification, postableAlert)."""
        payload: dict[str, object] = {
            "labels": dict(self.labels),
            "annotations": self.annotations,
            "startsAt": _time(self.starts),
            "endsAt": _time(now + timeline.ALERT_HOLD if self.ended is None else self.ended),
        }
        if self.page:
            payload["generatorURL"] = self.page
        return payload


class AlertLane:
    """One Alertmanager.

    Args:
        url: its base.
        held: the alerts that it is to know.
        delivered: called with its URL and the ended alerts that it has accepted.
    """

    def __init__(
        self,
        url: str,
        metrics: Metrics,
        held: Callable[[], list[Alert]],
        delivered: Callable[[str, Sequence[Alert]], None],
    ) -> None:
        self._url = url.rstrip("/") + "/api/v2/alerts"
        self._metrics = metrics
        self._held = held
        self._delivered = delivered
        self._http = HttpClient(connect=CONNECT_SECONDS, total=TOTAL_SECONDS)
        self._worker = Workers(1, "otel-fr alertmanager")
        self._wake = asyncio.Event()
        self._stopping = False
        self._known = 0
        """The changes up to this one have been posted."""
        self._all_posted_at = float("-inf")
        self._log = Throttle()

    def wake(self) -> None:
        """An alert has changed."""
        self._wake.set()

    def stop(self) -> None:
        """Post what is pending once more, then end `run`."""
        self._stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Post what has changed at once, and all alerts every `timeline.ALERT_RESEND` seconds, until `stop`."""
        pause = timeline.ALERT_RESEND
        while not self._stopping or self._wake.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()
            is_done = await self._post_due()
            pause = max(0.0, self._all_posted_at + timeline.ALERT_RESEND - time.monotonic()) if is_done else RETRY

    async def _post_due(self) -> bool:
        """Post what is due, new changes first; False: some must be posted again soon."""
        started = time.monotonic()
        is_full = started - self._all_posted_at >= timeline.ALERT_RESEND
        held = self._held()
        newest = max((alert.change for alert in held), default=0)
        due = [alert for alert in held if alert.change > self._known]
        if is_full:
            due += [alert for alert in held if alert.change <= self._known]
        for start in range(0, len(due), BATCH):
            if not await self._post(due[start : start + BATCH]):
                return False
        self._known = max(self._known, newest)
        if is_full:
            self._all_posted_at = started
        return True

    async def _post(self, alerts: Sequence[Alert]) -> bool:
        now = time.time()
        body = json.dumps([alert.payload(now) for alert in alerts]).encode()
        ended = [alert for alert in alerts if alert.ended is not None]
        problem, is_final = await self._worker.run(lambda: self._request(body))
        self._metrics.alert_posts.labels("failed" if problem else "sent").inc()
        if not problem:
            self._delivered(self._url, ended)
        elif self._log.allows():
            _log.warning("alerts could not be posted to %s: %s", clean(self._url), clean(problem))
        return is_final

    def _request(self, body: bytes) -> tuple[str, bool]:
        """What went wrong, or "", and whether a repetition would change nothing; called in the thread."""
        try:
            answer = self._http.request("POST", self._url, {"Content-Type": "application/json"}, body)
        except HttpError as error:
            return str(error), False
        if answer.status < 300:
            return "", True
        # Alertmanager answers 400 if one alert of a post is not valid, and takes the others (api/v2/api.go).
        return f"status {answer.status}: {answer.body[:200]!r}", 400 <= answer.status < 500 and answer.status != 429


def _time(seconds: float) -> str:
    return (datetime.fromtimestamp(0, tz=timezone.utc) + timedelta(seconds=seconds)).isoformat()
