"""Outlets: what every outlet does, and three of them: the JSON lines file, the terminal, the log."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TextIO

from otel_fr.identity import encode_ranks
from otel_fr_collector.incidents.book import ChangeKind, Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets.incident_text import render

_log = logging.getLogger(__name__)

FILES_PATIENCE = 0.4
"""Seconds for which a new incident waits on the terminal for the paths of the flight-recorder files."""
LOG_EVERY = 60.0


class Outlet(Protocol):
    """Publishes every change of every incident to one kind of receiver. No method waits for the receiver."""

    def start(self) -> None:
        """Begin; called in a running event loop."""

    def publish(self, change: IncidentChange) -> None:
        """Take in one change."""

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Take in what is known from an earlier life of the collector, before `start`, oldest first."""

    async def stop(self, seconds: float) -> None:
        """Deliver what is still pending, for at most so many seconds."""


def links_of(links: Links, incident: Incident, wall: float) -> dict[str, str]:
    """An incident's links; ``wall``: Unix time now."""
    ended = wall if incident.resolved is None else incident.resolved
    return links.of(incident.data, incident.started or incident.detected, ended)


class LogLines:
    """One line of the collector's log for each change, in logfmt."""

    def start(self) -> None:
        pass

    def publish(self, change: IncidentChange) -> None:
        data = change.data
        values = {
            "incident": data["id"],
            "change": change.kind.value,
            "category": data["category"],
            "job": data["job"],
            "attempt": data["attempt"],
            "culprits": encode_ranks(sorted(change.incident.finding.culprit_ranks)),
            "caused_by": data["caused_by"],
            "summary": data["summary"],
        }
        text = " ".join(f"{name}={_logfmt(value)}" for name, value in values.items() if value not in (None, ""))
        _log.warning("%s", text)

    def resume(self, incidents: Sequence[Incident]) -> None:
        pass

    async def stop(self, seconds: float) -> None:
        pass


def _logfmt(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


class IncidentsFile:
    """One JSON line for each state of each incident, on disk before anything else is done with it.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, metrics: Metrics) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._metrics = metrics
        self._logged = float("-inf")

    def write(self, data: dict[str, object]) -> None:
        """Append one line. A full disk costs the line, not the collector."""
        try:
            self._file.write(json.dumps(data) + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            self._metrics.errors.labels("incidents_file").inc()
            now = time.monotonic()
            if now - self._logged >= LOG_EVERY:
                self._logged = now
                _log.error("an incident could not be written to %s: %s", self._file.name, error)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            _log.error("%s: %s", self._file.name, error)


@dataclass(slots=True)
class _Printed:
    due: float | None
    essence: tuple[object, ...] = ()
    files: set[str] = field(default_factory=set)


class Terminal:
    """Prints incidents. A new one waits `FILES_PATIENCE` for its files; of an update only what is new is printed."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._color = out is not None and out.isatty()
        self._known: dict[str, _Printed] = {}
        self._pending: dict[str, IncidentChange] = {}

    def publish(self, change: IncidentChange, now: float, *, has_files: bool = False) -> None:
        """Take in a change; what is due is printed by `step`. ``has_files``: no further files are to be waited for."""
        number = change.incident.id
        known = self._known.get(number)
        if change.kind is ChangeKind.RESOLVED:
            self._print_pending(number)
            if not change.data["caused_by"]:
                self._write(render(ChangeKind.RESOLVED, change.data, now=time.time(), issued=None, color=self._color))
            self._known.pop(number, None)
            return
        if known is None or change.kind is ChangeKind.OPENED:
            self._known[number] = _Printed(now if has_files else now + FILES_PATIENCE)
            self._pending[number] = change
        elif known.due is not None:
            known.due = now if has_files else known.due
            self._pending[number] = IncidentChange(self._pending[number].kind, change.incident, change.data)
        elif known.essence != _essence(change.data):
            self._print(change)
        else:
            self._print_files(known, change)

    def step(self, now: float, *, final: bool = False) -> None:
        """Print the new incidents whose time has come."""
        for number in [n for n in self._pending if final or (self._known[n].due or 0.0) <= now]:
            self._print_pending(number)

    def _print_pending(self, number: str) -> None:
        change = self._pending.pop(number, None)
        if change is not None:
            self._print(change)

    def _print(self, change: IncidentChange) -> None:
        text = render(change.kind, change.data, now=time.time(), issued=change.incident.started, color=self._color)
        self._known[change.incident.id] = _Printed(None, _essence(change.data), set(_files(change.data)))
        self._write(text)

    def _print_files(self, known: _Printed, change: IncidentChange) -> None:
        files = _files(change.data)
        new = [rank for rank in files if rank not in known.files]
        known.files.update(new)
        if new and not change.data["caused_by"]:
            self._write(
                "".join(f"  [{change.incident.id}] flight recorder file of rank {r}: {files[r]}\n" for r in new)
            )

    def _write(self, text: str) -> None:
        if self._out is None:
            return
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # nobody reads any more; the file and the alerts go on
            self._out = None


def _essence(data: dict[str, object]) -> tuple[object, ...]:
    stacks = data["stacks"]
    return (
        data["category"],
        str(data["culprit_ranks"]),
        data["sequence_id"],
        data["caused_by"],
        sorted(stacks) if isinstance(stacks, dict) else (),
    )


def _files(data: dict[str, object]) -> dict[str, str]:
    files = data.get("flight_recorder_files")
    return files if isinstance(files, dict) else {}
