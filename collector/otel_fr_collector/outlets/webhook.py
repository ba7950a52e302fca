"""Posts incidents to any URL as JSON, signed as in the Standard Webhooks specification (standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from urllib.parse import urlsplit

from otel_fr_collector.incidents.incident import ChangeKind, Incident
from otel_fr_collector.outlets.changes import Change
from otel_fr_collector.outlets.outbox import Attempt, attempt_of, make_client

MIN_SECRET = 16
"""Bytes of the shortest secret that is accepted."""


def read_secret(text: str) -> bytes:
    """Read a secret from the text of a file: ``whsec_`` and base64, or any text.

    Raises:
        ValueError: the secret is shorter than `MIN_SECRET` bytes, or ``whsec_`` is not followed by base64.
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


class Webhook:
    """A receiver (`otel_fr_collector.outlets.changes.Receiver`) of all incidents.

    Args:
        secret: signs each post. None: posts are not signed.
    """

    replaced = frozenset({ChangeKind.UPDATED})

    def __init__(self, url: str, secret: bytes | None = None) -> None:
        # Paths and queries of webhooks may contain secrets: only the host is shown.
        self.name = f"webhook {urlsplit(url).hostname}"
        self.noted_as = "webhook/" + hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
        self._url = url
        self._secret = secret
        self._http = make_client()

    def wants(self, _: Incident, *, was_told: bool) -> bool:
        return True

    def body(self, kind: ChangeKind, incident: Incident, links: dict[str, str]) -> dict[str, object]:
        return {"version": 1, "change": kind.value, "incident": incident.data, "links": links}

    def post(self, change: Change) -> Attempt:
        """Post a change. A receiver recognises a repeated post by its id."""
        number = f"{change.incident}-{change.mark}"
        timestamp = int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "otel-fr",
            "webhook-id": number,
            "Idempotency-Key": f'"{number}"',
            "webhook-timestamp": str(timestamp),
        }
        if self._secret is not None:
            headers["webhook-signature"] = sign(self._secret, number, timestamp, change.body)
        return attempt_of(self._http.request("POST", self._url, headers, change.body))
