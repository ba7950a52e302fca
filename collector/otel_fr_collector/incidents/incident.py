"""One incident, as the collector keeps it, and its changes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from otel_fr.incident import (
    CollectorIncidentData,
    CulpritData,
    IncidentData,
    NcclRasData,
    SeverityName,
    StateName,
    incident_data,
    machines_of,
    timestamp,
)
from otel_fr.match import Category, Ending, Finding
from otel_fr.presentation import group_name
from otel_fr.printable import one_line
from otel_fr_collector import timeline
from otel_fr_collector.incidents.resolution import Resolution
from otel_fr_collector.incidents.what_to_do import what_to_do
from otel_fr_collector.jobs.ras import RasAnswer
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.shares import Owner

MAY_END = frozenset({Category.MISSING_RANK, Category.RANK_STUCK, Category.STALLED_COLLECTIVE, Category.STRAGGLER})
"""Waits that may end without help, because a rank is late or slow. Other faults cannot mend themselves, or had their
time: the program has set the limit of a heartbeat or a section."""
FIRING: Final = "firing"
RESOLVED: Final = "resolved"
MARK_FORM = "[0-9]{6}-[01]-[0-9]{8}"
"""A regular expression, in Python and in PostgreSQL, for what `Incident.mark` returns."""


class ChangeKind(Enum):
    OPENED = "opened"
    UPDATED = "updated"
    RESOLVED = "resolved"


@dataclass(slots=True)
class Incident:
    """One fault of one run.

    Attributes:
        keys: all keys that its findings have had. Its id is made from the first.
        job_title: the job's name as users see it; "": the job's id.
        cause: id of the incident that it follows from; None: it is a cause.
        opened: monotonic time of the opening. alert_after: seconds from then until people are notified.
        detected, started, changed, resolved: Unix times.
        over: when its wait ended (monotonic), although it may still be open; None: the wait lasts, or nobody waits.
        resolution: why it has ended; None: it is open. is_job_over: all ranks of its run have ended.
        waiting: Unix time since which the longest waiting rank waits; None: none waits, or the time is not known.
        culprits: what is known of its first culprits (`otel_fr_collector.incidents.bounds`).
        ras: what NCCL's RAS said of its run after it began; None: nothing.
        revision: how often it has changed; 1: only opened.
        openings: how often it has opened. changes: how often it has changed since the last opening, which counts, too.
        labels: its alert's labels. They change only when it opens, or becomes a cause or critical, so that the alert
            that was sent resolves.
        size: approximate bytes that it takes, as of its last change.
        owner: whose room it takes while it is open (`otel_fr_collector.shares`).
        data: the incident as it was last published (docs/reference/incident.md).
    """

    id: str
    run: RunId
    finding: Finding
    keys: list[str]
    cause: str | None
    opened: float
    detected: float
    started: float | None
    changed: float = 0.0
    resolved: float | None = None
    waiting: float | None = None
    alert_after: float = 0.0
    over: float | None = None
    resolution: Resolution | None = None
    is_job_over: bool = False
    revision: int = 0
    openings: int = 0
    changes: int = 0
    state: StateName = FIRING
    files: dict[int, str] = field(default_factory=dict)
    culprits: list[CulpritData] = field(default_factory=list)
    ras: RasAnswer | None = None
    job_title: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    size: int = 0
    owner: Owner = field(default_factory=lambda: Owner("", ""))
    data: CollectorIncidentData = field(init=False)

    def __post_init__(self) -> None:
        self.data = self.as_data()

    @property
    def is_open(self) -> bool:
        return self.state == FIRING

    @property
    def may_explain(self) -> bool:
        """Whether other faults may follow from it: it is a cause, and its wait has not ended."""
        return self.cause is None and self.over is None

    @property
    def severity(self) -> SeverityName:
        return "warning" if self.finding.category is Category.STRAGGLER else "critical"

    @property
    def may_end(self) -> bool:
        """Whether it may end without help: its category may, no waiting rank has given up, no culprit has left, and its
        job has not ended."""
        finding = self.finding
        is_over = self.is_job_over or bool(set(finding.ended_ranks) & set(finding.waiting_ranks))
        is_over = is_over or any(one["ending"] == Ending.CLEAN.value for one in self.culprits)
        return finding.category in MAY_END and not is_over

    def note_hold(self, kind: ChangeKind, alert_after: float, now: float) -> None:
        """After a change, set when people are notified: at once, unless the incident may end without help (`may_end`).

        Args:
            now: monotonic.
            alert_after: seconds that its ranks must have waited. If that is not known: that it must have been open.
        """
        if kind is ChangeKind.OPENED:
            waited = 0.0 if self.waiting is None else self.detected - self.waiting
            self.alert_after = max(0.0, alert_after - waited) if self.may_end else 0.0
        elif kind is ChangeKind.UPDATED and not self.may_end:
            self.alert_after = min(self.alert_after, now - self.opened)

    def note_return(self, waited: float, alert_after: float, now: float) -> None:
        """Note that ranks wait for its culprits again. If nobody has been notified yet, the hold begins again.

        ``alert_after`` and ``now`` are as for `note_hold`.

        Args:
            waited: seconds for which the ranks have waited by now.
        """
        if self.over is not None and not self.is_alerting(now):
            self.alert_after = now - self.opened + max(0.0, alert_after - waited)
        self.over = None

    def is_alerting(self, now: float) -> bool:
        """Whether people must know of it at the monotonic time ``now``."""
        return (now if self.over is None else self.over) - self.opened >= self.alert_after

    @property
    def told_until(self) -> float:
        """Unix time until which its alert lasts even if it is resolved before; 0 if there is nothing to do."""
        return self.detected + self.alert_after + timeline.TOLD_SECONDS if self.data["what_to_do"] else 0.0

    def mark(self, kind: ChangeKind) -> str:
        """A text that identifies a change. Later changes have greater texts. Collectors that agree share it."""
        changes = self.changes - 1 if kind is ChangeKind.UPDATED else 0
        return f"{self.openings:06}-{kind is ChangeKind.RESOLVED:d}-{changes:08}"

    def as_data(self) -> CollectorIncidentData:
        """The incident as JSON, as it is now."""
        data = incident_data(
            self.finding,
            job=self.run.job,
            attempt=self.run.attempt,
            run_id=self.run.run,
            started_at=self.started,
            detected_at=self.detected,
            state=self.state,
            waiting_since=self.waiting,
        )
        return {
            **data,
            "id": self.id,
            "job_title": self.job_title or self.run.job,
            # A finding that is a cause in its own verdict may still follow from an incident that opened before.
            "culprit_ranks": data["culprit_ranks"] if self.cause is None else [],
            "stacks": data["stacks"] if self.cause is None else {},
            "stack_groups": data["stack_groups"] if self.cause is None else [],
            "severity": self.severity,
            "what_to_do": self._what_to_do(data),
            "caused_by": self.cause,
            "culprits": self.culprits if self.cause is None else [],
            "nccl_ras": self._ras_data() if self.cause is None else None,
            "flight_recorder_files": {str(rank): self.files[rank] for rank in sorted(self.files)},
            "run_id": self.run.run,
            "updated_at": timestamp(self.changed),
            "resolved_at": timestamp(self.resolved),
            "resolution": None if self.resolution is None else self.resolution.value,
            "revision": self.revision,
        }

    def _what_to_do(self, data: IncidentData) -> str | None:
        data = {**data, "caused_by": self.cause}
        return what_to_do(data, self.culprits, resolution=self.resolution, is_over=self.is_job_over) or None

    def _ras_data(self) -> NcclRasData | None:
        if self.ras is None:
            return None
        return {"asked_at": timestamp(self.ras.asked), "version": self.ras.version, "lines": list(self.ras.lines)}

    def takes_ras(self, answer: RasAnswer) -> bool:
        """Whether the answer was given since the fault began, and differs from the incident's present answer."""
        began = self.detected - timeline.BEFORE_DETECTED if self.waiting is None else self.waiting - timeline.SAME_WAIT
        return answer != self.ras and answer.asked >= began

    def note_wait(self, wall: float) -> None:
        """Update since when its ranks wait, after a judgement at the Unix time ``wall``."""
        finding = self.finding
        if not finding.is_waiting or finding.age is None:
            self.waiting = None
        elif self.waiting is None or abs(wall - finding.age - self.waiting) > timeline.SAME_WAIT:
            self.waiting = wall - finding.age

    def take(self, finding: Finding, cause: str | None, culprits: list[CulpritData]) -> None:
        """Take what is known by now. If a consequence turns out to be a cause, an alert is sent from now on. If a
        warning has become critical, another alert is sent, which may reach other people."""
        is_turned, before = self.cause is not None and cause is None, self.severity
        self.finding, self.cause, self.culprits = finding, cause, culprits
        if is_turned or (before, self.severity) == ("warning", "critical"):
            self.take_labels()

    def take_labels(self) -> None:
        """Set the alert's labels from the incident as it is now: few values, valid names.

        ``host`` is the machine of the culprits if all are on one: automation that acts on it must not miss any.
        """
        group = self.finding.group
        machines = machines_of(self.as_data())
        labels = {
            "severity": self.severity,
            "job_id": one_line(self.run.job),
            "category": self.finding.category.value,
            "process_group": "" if group is None else one_line(group_name(group.name, group.description)),
            "host": one_line(machines[0]) if len(machines) == 1 else "",
        }
        self.labels = {name: value for name, value in labels.items() if value}


def is_told(note: str | None, mark: str) -> bool:
    """Whether an outlet's note shows that it has sent this change or a later one. A note of another form does not."""
    return note is not None and re.fullmatch(MARK_FORM, note) is not None and note >= mark


@dataclass(frozen=True)
class IncidentChange:
    """One opening, update or resolution of one incident, and the incident as data after it."""

    kind: ChangeKind
    incident: Incident
    data: CollectorIncidentData
