"""One incident as the collector publishes it."""

from __future__ import annotations

import time
from typing import Any

from otel_fr_collector.incidents.incident import RESOLVED, ChangeKind, Incident, IncidentChange
from otel_fr_collector.jobs.run import RunId

from otel_fr.incident import CollectorIncidentData
from otel_fr.match import Category, Finding, Group
from otel_fr.typed_json import typed

_EXAMPLE: dict[str, Any] = {
    "id": "abc", "job": "job-7", "attempt": 1, "category": "missing_rank", "rule": "absent_rank",
    "process_group": {"id": "g", "name": "0", "description": "default_pg", "ranks": [0, 1]},
    "operation": "all_reduce", "sequence_id": 5, "culprit_ranks": [1], "waiting_ranks": [0], "field": None,
    "values": {}, "stuck_on": None, "call_sites": {"1": "a.py:1 f"}, "stacks": {}, "caused_by": None, "trace_id": "ff",
    "started_at": None, "detected_at": "2026-01-02T03:04:05.678Z", "state": "firing", "summary": "rank 1 did not join",
    "culprits": [], "job_title": "job-7", "details": [], "places": {}, "stack_groups": [],
    "flight_recorder_files": {}, "run_id": "0123456789abcdef", "updated_at": None, "resolved_at": None, "revision": 1,
}  # fmt: skip


def incident_data(**changed: object) -> CollectorIncidentData:
    """Return an incident: rank 1 is missing in an all_reduce of two ranks. ``changed``: keys with other values."""
    return typed(CollectorIncidentData, {**_EXAMPLE, **changed})


def incident_change(
    job: str = "job-7", number: str = "abc", kind: ChangeKind = ChangeKind.OPENED, **changed: Any
) -> IncidentChange:
    """Return a change of an incident: rank 1 is missing in a job. ``changed``: attributes of the finding."""
    group = Group("g", "0", "default_pg", (0, 1))
    given = {"summary": "rank 1 did not join", "group": group, "category": Category.MISSING_RANK, **changed}
    finding = Finding(
        key="k", rule="absent_rank",
        operation="all_reduce", sequence_id=5, stream="collective",
        culprit_ranks=(1,), waiting_ranks=(0,), **given,
    )  # fmt: skip
    incident = Incident(number, RunId(job, 0, f"run-{job}"), finding, ["k"], None, 0.0, time.time(), None)
    if kind is ChangeKind.RESOLVED:
        incident.state, incident.resolved = RESOLVED, time.time()
    incident.revision = 1
    incident.take_labels()
    incident.data = incident.as_data()
    return IncidentChange(kind, incident, incident.data)
