"""Rows for the store. They are copies: another thread can write them while incidents and runs change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_fr_collector.incidents.incident import FIRING, Incident
from otel_fr_collector.incidents.kept import MAX_INCIDENTS
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.storage.serialization import dump_incident, dump_run

MAX_JOBS = 256
"""Jobs that wait to be written. If there are more, the oldest are dropped."""
MAX_NOTES = 16 * MAX_INCIDENTS
"""Notes that wait to be written: two per incident for each of 8 outlets."""

IncidentKey = tuple[RunId, str]
"""The run and the id of an incident."""
NoteKey = tuple[str, str]
"""The outlet that made the note, and the id of the incident."""


class IncidentRow(NamedTuple):
    """A row of the table ``incidents``, with one column for each field.

    Attributes:
        data: the incident as last published, as JSON.
        memory: what the collector knows beyond ``data``, as JSON.
    """

    id: str
    job: str
    attempt: int
    run: str
    state: str
    category: str
    cause: str | None
    detected: float
    changed: float
    data: str
    memory: str

    @classmethod
    def of(cls, incident: Incident) -> IncidentRow:
        """The incident as it is now."""
        return cls(
            incident.id,
            incident.run.job,
            incident.run.attempt,
            incident.run.run,
            incident.state,
            incident.finding.category.value,
            incident.cause,
            incident.detected,
            incident.changed,
            json.dumps(incident.data),
            json.dumps(dump_incident(incident)),
        )

    @property
    def key(self) -> IncidentKey:
        return RunId(self.job, self.attempt, self.run), self.id


class FinishedJob(NamedTuple):
    """A row of the table ``jobs``, with one column for each field: a run as it was shown last.

    The run is over, or it still runs and the row shows it to the collectors that share the database.

    Attributes:
        key: the run's key in URLs.
        ended: Unix time of its last telemetry.
        summary: its line in the list of jobs, as JSON.
        detail: its full JSON, compressed by gzip. Empty: it is too large, or the run still runs.
    """

    key: str
    job: str
    ended: float
    summary: str
    detail: bytes


@dataclass
class Batch:
    """Rows that must be written: the newest of each incident, run and note, within bounds.

    Attributes:
        runs: the JSON of each run. None: delete the run.
    """

    incidents: dict[IncidentKey, IncidentRow] = field(default_factory=dict)
    runs: dict[RunId, str | None] = field(default_factory=dict)
    notes: dict[NoteKey, str] = field(default_factory=dict)
    jobs: list[FinishedJob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.incidents or self.runs or self.notes or self.jobs)

    def add(self, newer: Batch) -> None:
        """Add the rows of another batch, which are newer. Beyond the bounds, resolved incidents are dropped first."""
        self.incidents.update(newer.incidents)
        while len(self.incidents) > MAX_INCIDENTS:
            over = (key for key, row in self.incidents.items() if row.state != FIRING)
            del self.incidents[next(over, next(iter(self.incidents)))]
        self.runs.update(newer.runs)
        self.notes.update(newer.notes)
        while len(self.notes) > MAX_NOTES:
            del self.notes[next(iter(self.notes))]
        self.jobs = [*self.jobs, *newer.jobs][-MAX_JOBS:]

    def clear(self) -> None:
        self.incidents.clear()
        self.runs.clear()
        self.notes.clear()
        self.jobs.clear()


def of_incidents(incidents: Iterable[Incident], runs: Iterable[Run], now: float, wall: float) -> Batch:
    """The rows of incidents and runs as they are now. ``now``, ``wall``: monotonic and Unix time."""
    rows = (IncidentRow.of(incident) for incident in incidents)
    return Batch({row.key: row for row in rows}, {run.id: json.dumps(dump_run(run, now, wall)) for run in runs})


def of_notes(outlet: str, values: Mapping[str, str]) -> Batch:
    """The rows of an outlet's notes. ``values``: the notes, by the ids of incidents."""
    return Batch(notes={(outlet, number): value for number, value in values.items()})
