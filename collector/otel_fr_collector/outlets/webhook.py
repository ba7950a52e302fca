"""Incidents posted to any URL as JSON, signed as the Standard Webhooks specification says (standardwebhooks.com)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.outlets.delivery import Attempt, DeliveryQueue, Outcome, attempt_of, make_client
from otel_fr_collector.outlets.outlet import TenantOf, links_of, owner_of
from otel_fr_collector.storage.store import Store

MIN_SECRET = 16
"""Bytes of the shortest secret that is accepted."""


def read_secret(text: str) -> bytes:
    """A secret as a file holds it: ``whsec_`` and base64, or any text.

    Raises:
        ValueError: it is shorter than `MIN_SECRET` bytes, or not base64.
    """
    text = text.strip()
    if text.startswith("whsec_"):
        try:
            secret = base64.b64decode(text.removeprefix("whsec_"), validate=True)
        except binascii.Error as error:
            raise ValueError(f"the webhook secret is not whsec_ followed by base64: {error}") from error
    else:
        secret = text.encode()
    if len(secret) < MIN_SECRET:
        raise ValueError(f"the webhook secret has {len(secret)} bytes; it needs at least {MIN_SECRET}")
    return secret


def sign(secret: bytes, number: str, timestamp: int, body: bytes) -> str:
    """The ``webhook-signature`` header: ``v1,`` and the base64 of HMAC-SHA256 over ``ID.TIMESTAMP.BODY``."""
    content = b".".join((number.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()


def body_of(kind: ChangeKind, incident: Incident, links: Links, wall: float) -> dict[str, object]:
    """What is posted of a change; ``wall``: Unix time now."""
    return {
        "version": 1,
        "change": kind.value,
        "incident": incident.data,
        "links": links_of(links, incident, wall),
    }


@dataclass(frozen=True)
class _Delivery:
    """``number``: the same for each attempt, so that a receiver recognises a repeated post."""

    number: str
    kind: ChangeKind
    incident: str
    revision: int
    body: bytes


class Webhook:
    """One receiver. Every change of every incident is posted, those of one job in order (docs/incidents.md).

    Args:
        secret: signs each post; None: unsigned.
        store: remembers what was delivered, so that a restart repeats nothing and leaves nothing out.
    """

    def __init__(
        self,
        url: str,
        metrics: Metrics,
        *,
        secret: bytes | None = None,
        links: Links | None = None,
        store: Store | None = None,
        tenant_of: TenantOf = tenant_of,
        wall: Callable[[], float] = time.time,
    ) -> None:
        # Paths and queries of webhooks hold their secrets: only the host is shown.
        self.name = f"webhook {urlsplit(url).hostname}"
        self._outlet = "webhook/" + hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
        self._url = url
        self._secret = secret
        self._links = links or Links()
        self._store = store
        self._wall = wall
        self._tenant_of = tenant_of
        self._http = make_client()
        self._queue: DeliveryQueue[_Delivery] = DeliveryQueue(self.name, self._deliver, metrics)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue.start()

    def publish(self, change: IncidentChange) -> None:
        self._put(change.kind, change.incident)

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Deliver what was not delivered before the restart."""
        if self._store is None:
            return
        noted = self._store.notes(self._outlet)
        skipped: dict[str, str] = {}
        for incident in incidents:
            revision = noted.get(incident.id, "0")
            delivered = int(revision) if revision.isdecimal() else 0
            if delivered >= incident.revision:
                continue
            if not noted and not incident.is_open:  # a new receiver gets no incidents that are over
                skipped[incident.id] = str(incident.revision)
                continue
            if not delivered and incident.is_open:
                # Perhaps it was, and the note of it was lost with the collector: then the receiver knows this id.
                self._put(ChangeKind.OPENED, incident, revision=1)
            if incident.revision > 1 or delivered or not incident.is_open:
                self._put(ChangeKind.UPDATED if incident.is_open else ChangeKind.RESOLVED, incident)
        if skipped:
            self._store.note(self._outlet, skipped)

    def forget(self, run: RunId) -> None:
        pass

    async def stop(self, seconds: float) -> None:
        await self._queue.stop(seconds)
        await asyncio.sleep(0)  # for the notes that the thread has scheduled

    def _put(self, kind: ChangeKind, incident: Incident, revision: int | None = None) -> None:
        """Queue a post; ``revision``: of the change that it is about, if that is not the latest."""
        body = body_of(kind, incident, self._links, self._wall())
        revision = incident.revision if revision is None else revision
        number = f"{incident.id}-{revision}"
        item = _Delivery(number, kind, incident.id, revision, json.dumps(body).encode())
        self._queue.put(
            item,
            owner_of(incident, self._tenant_of),
            len(item.body),
            lambda old: old.kind is ChangeKind.UPDATED and old.incident == item.incident,
        )

    def _deliver(self, item: _Delivery) -> Attempt:
        timestamp = int(self._wall())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "otel-fr",
            "webhook-id": item.number,
            "Idempotency-Key": f'"{item.number}"',
            "webhook-timestamp": str(timestamp),
        }
        if self._secret is not None:
            headers["webhook-signature"] = sign(self._secret, item.number, timestamp, item.body)
        attempt = attempt_of(self._http.request("POST", self._url, headers, item.body))
        if attempt.outcome is not Outcome.FAILED and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._note, item)
        return attempt

    def _note(self, item: _Delivery) -> None:
        if self._store is not None:
            self._store.note(self._outlet, {item.incident: str(item.revision)})
