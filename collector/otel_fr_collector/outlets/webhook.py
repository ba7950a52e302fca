"""Incidents posted to any URL as JSON, signed as the Standard Webhooks specification says (standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange, is_told
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.outlets.delivery import Attempt, DeliveryQueue, attempt_of, deliver_once, make_client
from otel_fr_collector.outlets.outlet import Outlet, TenantOf, links_of, owner_of
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
    """``mark``: of the change, the same for each attempt and collector: a receiver recognises a repeated post."""

    kind: ChangeKind
    incident: str
    mark: str
    body: bytes


class Webhook(Outlet):
    """One receiver. Every change of every incident is posted, changes of one job in order (docs/guide/alerts.md).

    Args:
        secret: signs each post; None: unsigned.
        store: remembers what was delivered, so that neither a restart nor another collector repeats anything.
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

    def start(self) -> None:
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
            kind = ChangeKind.UPDATED if incident.is_open else ChangeKind.RESOLVED
            note, opened, mark = noted.get(incident.id), incident.mark(ChangeKind.OPENED), incident.mark(kind)
            if is_told(note, mark):
                continue
            if not noted and not incident.is_open:  # a new receiver gets no incidents that are over
                skipped[incident.id] = mark
                continue
            if incident.is_open and not is_told(note, opened):
                # Perhaps it was, and the note of it was lost with the collector: then the receiver knows this id.
                self._put(ChangeKind.OPENED, incident)
                if mark == opened:
                    continue
            self._put(kind, incident)
        if skipped:
            self._store.note(self._outlet, skipped)

    async def stop(self, seconds: float) -> None:
        await self._queue.stop(seconds)

    def _put(self, kind: ChangeKind, incident: Incident) -> None:
        body = body_of(kind, incident, self._links, self._wall())
        item = _Delivery(kind, incident.id, incident.mark(kind), json.dumps(body).encode())
        self._queue.put(
            item,
            owner_of(incident, self._tenant_of),
            len(item.body),
            lambda old: old.kind is ChangeKind.UPDATED and old.incident == item.incident,
        )

    def _deliver(self, item: _Delivery) -> Attempt:
        return deliver_once(self._store, self._outlet, item.incident, item.mark, lambda: self._post(item))

    def _post(self, item: _Delivery) -> Attempt:
        number = f"{item.incident}-{item.mark}"
        timestamp = int(self._wall())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "otel-fr",
            "webhook-id": number,
            "Idempotency-Key": f'"{number}"',
            "webhook-timestamp": str(timestamp),
        }
        if self._secret is not None:
            headers["webhook-signature"] = sign(self._secret, number, timestamp, item.body)
        return attempt_of(self._http.request("POST", self._url, headers, item.body))
