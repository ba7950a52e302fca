"""Incidents in the collector's log."""

from __future__ import annotations

import json
import logging

from otel_fr.identity import encode_ranks
from otel_fr.incident import machines_of
from otel_fr.printable import shortened
from otel_fr_collector.incidents.incident import IncidentChange
from otel_fr_collector.outlets.outlet import Outlet

_log = logging.getLogger(__name__)


MAX_VALUE = 2_000
"""Characters of one value. Half of the ranks of a large job may be culprits."""


class LogLines(Outlet):
    """One line of the collector's log for each change, in logfmt."""

    name = "log"

    def publish(self, change: IncidentChange) -> None:
        if not _log.isEnabledFor(logging.WARNING):
            return
        data = change.data
        values = {
            "incident": data["id"],
            "change": change.kind.value,
            "category": data["category"],
            "job": data["job"],
            "attempt": data["attempt"],
            "culprits": encode_ranks(data["culprit_ranks"]),
            "caused_by": data["caused_by"],
            "hosts": ",".join(machines_of(data)),
            "waiting_since": data["waiting_since"],
            "resolution": data["resolution"],
            "summary": data["summary"],
            "what_to_do": data["what_to_do"],
        }
        text = " ".join(f"{name}={_logfmt(value)}" for name, value in values.items() if value not in (None, ""))
        _log.warning("%s", text)


def _logfmt(value: object) -> str:
    text = shortened(str(value), MAX_VALUE)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
