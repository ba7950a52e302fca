"""Incidents on the terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TextIO

from otel_fr.incident import CollectorIncidentData
from otel_fr.printable import one_line
from otel_fr_collector import timeline
from otel_fr_collector.incidents.incident import ChangeKind, IncidentChange
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.outlets.incident_text import render
from otel_fr_collector.output import Unblocked


@dataclass(slots=True)
class _Printed:
    run: RunId
    due: float | None
    essence: tuple[object, ...] = ()
    files: set[str] = field(default_factory=set)


class Terminal:
    """Prints incidents. A new incident waits for its files (`timeline.FILES_PATIENCE`). An update is printed only if it
    changes something that a reader needs, or adds files."""

    def __init__(self, out: TextIO | Unblocked | None) -> None:
        self._out = out
        self._color = out is not None and out.isatty()
        self._known: dict[str, _Printed] = {}
        self._pending: dict[str, IncidentChange] = {}

    def publish(self, change: IncidentChange, now: float, *, has_files: bool = False) -> None:
        """Record a change; `step` prints what is due. ``has_files``: no further files are expected."""
        number = change.incident.id
        known = self._known.get(number)
        if change.kind is ChangeKind.RESOLVED:
            self._print_pending(number)
            if not change.data["caused_by"]:
                self._write(render(ChangeKind.RESOLVED, change.data, now=time.time(), started=None, color=self._color))
            self._known.pop(number, None)
            return
        if known is None or change.kind is ChangeKind.OPENED:
            self._known[number] = _Printed(change.incident.run, now if has_files else now + timeline.FILES_PATIENCE)
            self._pending[number] = change
        elif known.due is not None:
            known.due = now if has_files else known.due
            self._pending[number] = IncidentChange(self._pending[number].kind, change.incident, change.data)
        elif known.essence != _essence(change.data):
            self._print(change)
        else:
            self._print_files(known, change)

    def forget(self, run: RunId) -> None:
        """Forget a run without printing anything: another collector continues its incidents."""
        for number in [number for number, known in self._known.items() if known.run == run]:
            del self._known[number]
            self._pending.pop(number, None)

    def step(self, now: float, *, final: bool = False) -> None:
        """Print the new incidents that are due; with ``final``, all of them."""
        for number in [n for n in self._pending if final or (self._known[n].due or 0.0) <= now]:
            self._print_pending(number)

    def _print_pending(self, number: str) -> None:
        change = self._pending.pop(number, None)
        if change is not None:
            self._print(change)

    def _print(self, change: IncidentChange) -> None:
        text = render(change.kind, change.data, now=time.time(), started=change.incident.started, color=self._color)
        known = self._known[change.incident.id]
        known.due, known.essence, known.files = None, _essence(change.data), set(change.data["flight_recorder_files"])
        self._write(text)

    def _print_files(self, known: _Printed, change: IncidentChange) -> None:
        files = change.data["flight_recorder_files"]
        new = [rank for rank in files if rank not in known.files]
        known.files.update(new)
        if new and not change.data["caused_by"]:
            self._write(
                "".join(
                    f"  [{change.incident.id}] flight-recorder file of rank {r}: {one_line(files[r])}\n" for r in new
                )
            )

    def _write(self, text: str) -> None:
        if self._out is None:
            return
        encoding = self._out.encoding or "utf-8"  # a terminal without Unicode must not end the output
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._out.write(text)
        self._out.flush()


def _essence(data: CollectorIncidentData) -> tuple[object, ...]:
    return (
        data["category"],
        str(data["culprit_ranks"]),
        data["sequence_id"],
        data["caused_by"],
        sorted(data["stacks"]),
    )
