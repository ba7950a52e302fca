"""Checks whether the collector can be reached, and how far this node's clock differs from the collector's."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

import urllib3

from otel_fr.checks.model import Outcome, Status
from otel_fr.config import CERTIFICATE_VARIABLE
from otel_fr.monitor.telemetry.endpoint_probe import SIGNALS, likely_mistake, reason_of
from otel_fr.otlp_sender import endpoint_address, endpoint_mistake, endpoint_of
from otel_fr.redaction import hide_password

DATE_SECONDS: Final = 2.0
"""How old a Date header may be when it is sent: it has whole seconds, and servers update it once a second."""


def check_endpoint(url: str, timeout: float, env: Mapping[str, str] = os.environ) -> Outcome:
    """Check that a server accepts connections within ``timeout`` seconds.

    If it is an OTLP endpoint of ``env``, also check for the usual mistakes, with the texts of a rank's monitor.
    """
    signals = [signal for signal in SIGNALS if endpoint_of(signal, env)[1] == url]
    if text := _first(endpoint_mistake(signal, env) for signal in signals):
        return Outcome(Status.FAILED, text)
    try:
        with socket.create_connection(endpoint_address(url), timeout):
            pass
    except (OSError, ValueError) as error:
        return Outcome(Status.FAILED, f"cannot be reached: {reason_of(error)}")
    text = _first(likely_mistake(signal, env) for signal in signals)
    return Outcome(Status.FAILED, text) if text else Outcome(Status.OK, "it accepts connections")


def _first(texts: Iterable[str]) -> str:
    """Return the first text that is not empty, without passwords, or ""."""
    return hide_password(next(filter(None, texts), ""))


def check_clock(url: str, allowed: float, timeout: float) -> Outcome:
    """Compare this node's clock with the ``Date`` header of an HTTP server.

    Args:
        url: any path of the server. Its answer does not matter.
        allowed: seconds by which the clocks may differ.
    """
    try:
        endpoint_address(url)  # an error of urllib3 may quote a part of a password
        before, date, after = _ask(url, timeout)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        return Outcome(Status.SKIPPED, hide_password(f"cannot read its time: {error}"))
    if date is None:
        return Outcome(Status.SKIPPED, "its answer has no time")
    offset = least_offset(before, date, after)
    if abs(offset) > allowed:
        ahead = "ahead of" if offset > 0 else "behind"
        return Outcome(Status.FAILED, f"this node's clock is at least {abs(offset):.1f} s {ahead} its clock")
    return Outcome(Status.OK, f"the clocks differ by less than {abs(offset) + DATE_SECONDS:.1f} s")


def least_offset(before: float, date: float, after: float) -> float:
    """Return the smallest difference (this node's clock minus the server's) that explains the three times.

    All times are Unix seconds. The server wrote ``date``, which is up to `DATE_SECONDS` old, between ``before`` and
    ``after`` by this node's clock.
    """
    low, high = before - (date + DATE_SECONDS), after - date
    return low if low > 0 else min(high, 0.0)


def _ask(url: str, timeout: float, wall: Callable[[], float] = time.time) -> tuple[float, float | None, float]:
    """Return this node's time before a request, the server's time in its answer or None, and this node's time after."""
    with urllib3.PoolManager(ca_certs=os.environ.get(CERTIFICATE_VARIABLE) or None) as http:
        before = wall()
        response = http.request("HEAD", url, timeout=timeout, retries=False, redirect=False)
        after = wall()
    text = response.headers.get("Date")
    return before, None if text is None else parsedate_to_datetime(text).timestamp(), after
