"""Opens an incident once, updates it as more is known of the fault, and resolves it. A pure state machine."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Container, Mapping, Sequence

from otel_fr.identity import incident_id
from otel_fr.match import Category, Finding
from otel_fr.match.facts.instances import key_of_finding
from otel_fr_collector import timeline
from otel_fr_collector.incidents.bounds import bounded, culprits_of, first_texts
from otel_fr_collector.incidents.essence import essence_of, with_first_cause, with_hints
from otel_fr_collector.incidents.incident import FIRING, RESOLVED, ChangeKind, Incident, IncidentChange
from otel_fr_collector.incidents.kept import MAX_INCIDENTS, KeptIncidents
from otel_fr_collector.incidents.likeness import is_after, is_again, may_come_again, still, waits
from otel_fr_collector.incidents.resolution import Resolution
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.stops import has_ended

_log = logging.getLogger(__name__)

MAX_OPEN_PER_RUN = 200
"""Open incidents of one run; later ones are dropped, because the earlier ones show the fault."""

_AFTERMATH = frozenset(
    {
        Category.RANK_DEAD,
        Category.MISSING_RANK,
        Category.STALLED_COLLECTIVE,
        Category.RANK_STUCK,
        Category.STRAGGLER,
        Category.HEARTBEAT_MISSED,
        Category.SECTION_OVERRUN,
    }
)
"""Faults that follow if a collective never completes: its ranks time out, raise, and are killed."""


class IncidentBook(KeptIncidents):
    """All incidents of all runs, and their changes.

    Args: as in `KeptIncidents`.
    """

    def update(
        self,
        run: Run,
        findings: Sequence[Finding],
        *,
        now: float,
        wall: float,
        enqueued: Mapping[str, float | None],
        over: Container[str],
    ) -> list[IncidentChange]:
        """Take the findings of one judgement of a run.

        Args:
            findings: the credible ones, causes before consequences.
            enqueued: Unix time at which a finding's collective was enqueued, by the finding's key.
            over: ids of open incidents whose faulty collective has ended well. No finding is about them.
        """
        changes: list[IncidentChange] = []
        keys = {finding.key for finding in findings}
        causes = {finding.key for finding in findings if finding.caused_by is None}
        matched: set[str] = set()
        for old in self.open_faults(run.id):
            if old.id in over and not self._goes_on(old, findings):
                changes.extend(self._note_over(old, now))
        for finding in map(self._bounded, findings):
            incident = self._same(run.id, finding, keys, causes) or self._again(run, finding, now)
            if incident is not None and (incident.id in matched or (has_ended(run) and not incident.is_open)):
                continue
            if incident is None or not incident.is_open:
                changes.extend(self._open(run, finding, incident, keys, now, wall, enqueued.get(finding.key)))
                matched.add(self._number(run.id, finding.key) if incident is None else incident.id)
                continue
            matched.add(incident.id)
            changes.extend(self._renew(run, incident, finding, causes, now, wall, enqueued.get(finding.key)))
        changes += self._preceded(run.id, findings, keys, causes, now)
        return changes + self._overtaken(run.id, findings, keys, causes, now)

    def note_slowness(
        self, run: Run, now: float, wall: float, late: Mapping[str, Finding | None]
    ) -> list[IncidentChange]:
        """Open, update and resolve the incidents about ranks that always come last. These explain no others.

        Args:
            late: by group id, the finding about the group; None: no rank comes last, or no longer does.
        """
        known = self.open_slowness(run.id)
        changes: list[IncidentChange] = []
        for number, found in late.items():
            incident = known.get(number)
            if found is None:
                changes.extend(self._resolve(incident, now) if incident is not None else [])
            elif incident is not None:
                changes.extend(self._renew(run, incident, self._bounded(found), {found.key}, now, wall, None))
            else:
                old = next((one for one in self._by_run.get(run.id, ()) if found.key in one.keys), None)
                changes.extend(self._open(run, self._bounded(found), old, {found.key}, now, wall, None))
        return changes

    def open_slowness(self, run: RunId) -> dict[str, Incident]:
        """The open incidents about ranks that always come last, by group."""
        own = [one for one in self.open_of(run) if one.finding.is_slowness]
        return {one.finding.group.id: one for one in own if one.finding.group is not None}

    def open_faults(self, run: RunId) -> list[Incident]:
        """The open incidents of the run, except those about ranks that always come last."""
        return [one for one in self.open_of(run) if not one.finding.is_slowness]

    def add_files(self, run: Run, now: float) -> list[IncidentChange]:
        """Add flight-recorder files that the run's ranks have written since."""
        limit, files = self._file_limit, _files(run)
        changes: list[IncidentChange] = []
        for incident in self.open_of(run.id):
            merged = first_texts({**incident.files, **files}, limit)
            if merged != incident.files:
                incident.files = merged
                changes.extend(self._note_change(ChangeKind.UPDATED, incident, now))
        return changes

    def add_ras(self, run: Run, now: float) -> list[IncidentChange]:
        """Add what NCCL's RAS has said since a fault of the run began."""
        answer = run.ras
        changes: list[IncidentChange] = []
        for incident in self.open_faults(run.id) if answer is not None else ():
            if answer is not None and incident.cause is None and incident.takes_ras(answer):
                incident.ras = answer
                changes.extend(self._note_change(ChangeKind.UPDATED, incident, now))
        return changes

    def resolve_run(self, run: RunId, now: float, why: Resolution = Resolution.OVER) -> list[IncidentChange]:
        """Resolve the open incidents of a run that is over."""
        return [change for incident in self.open_of(run) for change in self._resolve(incident, now, why)]

    def note_end(self, run: RunId, now: float) -> list[IncidentChange]:
        """Note that all ranks of the run have ended. This changes what to do, and no wait can end without help now."""
        changes: list[IncidentChange] = []
        for incident in self.open_of(run):
            might_end, incident.is_job_over = incident.may_end, True
            if might_end or incident.as_data()["what_to_do"] != incident.data["what_to_do"]:
                changes.extend(self._note_change(ChangeKind.UPDATED, incident, now))
        return changes

    def _same(self, run: RunId, finding: Finding, keys: set[str], causes: set[str]) -> Incident | None:
        """The incident that this finding is about; it may be a resolved one that fires again.

        Args:
            keys: of all findings of this judgement. causes: keys of those that are causes.
        """
        known, key = self._by_run.get(run, []), key_of_finding(finding)
        with_key = next((one for one in known if finding.key in one.keys), None)
        if with_key is not None:
            # If one of two faults in a call is over, the other may get its key.
            others = (one for one in self.open_faults(run) if one.cause is None and key_of_finding(one.finding) == key)
            accuses = (one for one in others if one.finding.culprit_ranks == finding.culprit_ranks)
            return next(accuses, with_key) if key is not None and finding.caused_by is None else with_key
        for incident in known:
            is_free = incident.is_open and causes.isdisjoint(incident.keys)  # else it is another fault in this call
            if is_free and key is not None and key_of_finding(incident.finding) == key:
                return incident
        if finding.caused_by is not None:
            return None
        for incident in self.open_faults(run):
            is_cause = incident.cause is None
            if is_cause and not keys & set(incident.keys) and self._is_later_form(incident.finding, finding):
                return incident
        return None

    def _again(self, run: Run, finding: Finding, now: float) -> Incident | None:
        """The resolved incident whose fault happens again."""
        known = () if has_ended(run) else self._by_run.get(run.id, ())
        return next((one for one in known if is_again(finding, one, now)), None)

    def _note_over(self, incident: Incident, now: float) -> list[IncidentChange]:
        """Resolve an incident whose collective has ended well, unless it has recurred before and may recur again."""
        incident.over = now if incident.over is None else incident.over
        is_held = incident.openings > 1 and may_come_again(incident, now)
        return [] if is_held else self._resolve(incident, now)

    def _is_later_form(self, old: Finding, new: Finding) -> bool:
        """Whether the new finding replaces the old one: they share a culprit, and not only the old is a mismatch."""
        if old.category.is_mismatch and not new.category.is_mismatch:
            return False
        return bool(set(old.culprit_ranks) & set(new.culprit_ranks))

    def _goes_on(self, old: Incident, findings: Sequence[Finding]) -> bool:
        """Whether the incident continues: it was about no group, and ranks now wait for its culprit."""
        if old.finding.group is not None or old.cause is not None:
            return False
        return any(finding.caused_by is None and self._is_later_form(old.finding, finding) for finding in findings)

    def _cause(self, run: RunId, finding: Finding, keys: set[str], now: float) -> str | None:
        """The id of the open incident that a finding follows from.

        Args:
            keys: of this judgement's findings. If a finding follows from one of them, the match engine says so.
        """
        if finding.is_slowness or finding.is_apart:
            return None
        open_causes = [one for one in self.open_faults(run) if one.may_explain]
        if finding.caused_by is not None:
            for incident in self._by_run.get(run, ()):
                if finding.caused_by in incident.keys:
                    return incident.cause or incident.id
            return self._number(run, finding.caused_by)
        ranks = set(finding.culprit_ranks or finding.waiting_ranks)
        for incident in open_causes:
            old = incident.finding
            if old.key == finding.key or keys.intersection(incident.keys):
                continue
            if finding.category.is_mismatch:
                if old.category.is_mismatch and is_after(finding, old):
                    return incident.id
            elif (
                finding.category in _AFTERMATH
                and ranks <= {*old.waiting_ranks, *old.culprit_ranks}
                and (not old.category.is_mismatch or now - incident.opened < timeline.MISMATCH_AFTERMATH)
            ):
                return incident.id
        return None

    def _open(
        self,
        run: Run,
        finding: Finding,
        known: Incident | None,
        keys: set[str],
        now: float,
        wall: float,
        enqueued: float | None,
    ) -> list[IncidentChange]:
        if len(self.open_of(run.id)) >= MAX_OPEN_PER_RUN:
            run.usage.refused["incidents"] += 1
            return []
        changes = self._make_room(run, now)
        if changes is None:
            return []
        cause = self._cause(run.id, finding, keys, now)
        started = enqueued if enqueued is not None else wall - (finding.age or 0.0)
        wall = self._own_moment(wall)
        if known is None:
            number = self._number(run.id, finding.key)
            known = Incident(number, run.id, finding, [finding.key], cause, now, wall, started)
            self._keep(known)
        else:
            known.finding, known.cause, known.state = finding, cause, FIRING
            known.opened, known.detected, known.started, known.resolved = now, wall, started, None
            known.ras = known.resolution = known.over = None
            known.keys += [] if finding.key in known.keys else [finding.key]
        self._note_open(known)
        self._trim()
        known.is_job_over = has_ended(run)
        known.openings, known.changes = known.openings + 1, 0
        known.job_title = run.title
        known.note_wait(wall)
        known.take_labels()
        known.culprits = culprits_of(finding, run.ranks)
        known.files = first_texts(_files(run), self._file_limit)
        if run.ras is not None and known.takes_ras(run.ras):
            known.ras = run.ras
        return changes + self._note_change(ChangeKind.OPENED, known, now)

    def _number(self, run: RunId, key: str) -> str:
        """The id of an incident: what `incident_id` returns, unless an incident of another run has this id.

        Ranks choose the id of their run, so two jobs may have the same one.
        """
        number = incident_id(run.run, key)
        if self._runs_of.get(number, set()) - {run}:
            return incident_id("\x1f".join((run.job, str(run.attempt), run.run)), key)
        return number

    def _make_room(self, run: Run, now: float) -> list[IncidentChange] | None:
        """Make room for one more open incident. Return the changes that this causes; None: there is no room."""
        if self._open_count < MAX_INCIDENTS:
            return []
        run.usage.refused["incidents"] += 1
        loser = self._gives_way(run.id, now)
        if self._log.allows(now=now):
            job = (loser.run if loser is not None else run.id).job
            _log.error("limit of %d firing incidents reached: dropping an incident of job %r", MAX_INCIDENTS, job)
        return None if loser is None else self._resolve(loser, now, Resolution.DROPPED)

    def _bounded(self, finding: Finding) -> Finding:
        return bounded(finding, scarce=self._is_scarce)

    def _overtaken(
        self, run: RunId, findings: Sequence[Finding], keys: set[str], causes: set[str], now: float
    ) -> list[IncidentChange]:
        """Turn causes into consequences of a fault that blocks their culprits, or that has the same culprits.

        The second case applies only to a cause without a group: the wait for its culprits is the same fault.

        Args:
            keys, causes: as in `_same`.
        """
        changes: list[IncidentChange] = []
        for finding in findings:
            found = self._same(run, finding, keys, causes) if finding.caused_by is None else None
            if found is None:
                continue
            cause = found.cause or found.id
            waiting = {r for f in findings if finding.key in (f.key, f.caused_by) for r in f.waiting_ranks}
            for old in self.open_faults(run):
                culprits = set(old.finding.culprit_ranks)
                is_cause = old.may_explain and old.id != cause and not keys & set(old.keys)
                is_retold = old.finding.group is None and culprits <= set(finding.culprit_ranks)
                if is_cause and culprits and (culprits <= waiting or is_retold):
                    changes.extend(self._attribute(old, cause, now))
        return changes

    def _preceded(
        self, run: RunId, findings: Sequence[Finding], keys: set[str], causes: set[str], now: float
    ) -> list[IncidentChange]:
        """Turn mismatches into consequences of an earlier one in their group that became known after them.

        Args:
            keys, causes: as in `_same`. No other finding explains an incident that has one of the keys.
        """
        changes: list[IncidentChange] = []
        for finding in findings:
            found = self._same(run, finding, keys, causes) if finding.category.is_mismatch else None
            if found is None or finding.key not in found.keys:
                continue
            cause = found.cause or found.id
            for old in self.open_faults(run):
                is_explained = old.cause is None and old.id != cause and not keys & set(old.keys)
                if is_explained and old.finding.category.is_mismatch and is_after(old.finding, finding):
                    changes.extend(self._attribute(old, cause, now))
        return changes

    def _attribute(self, incident: Incident, cause: str, now: float) -> list[IncidentChange]:
        """Turn an incident that was reported as a cause into a consequence of another open incident."""
        incident.cause = cause
        return self._note_change(ChangeKind.UPDATED, incident, now) + self._hand_on(incident, cause, now)

    def _hand_on(self, incident: Incident, cause: str, now: float) -> list[IncidentChange]:
        """Make the consequences of an incident follow from another one."""
        changes: list[IncidentChange] = []
        for other in self.open_of(incident.run):
            if other.cause == incident.id and other.id != cause:
                other.cause = cause
                changes.extend(self._note_change(ChangeKind.UPDATED, other, now))
        return changes

    def _still_follows(self, incident: Incident, finding: Finding, causes: set[str]) -> bool:
        """Whether an incident remains a consequence although the match engine now takes it for a cause.

        Mostly it does, because less is known of ranks that gave up than of ranks that wait, or after a restart. Not if
        * its culprits continued after an earlier failure, its cause is over, or it has culprits and its cause has none;
        * its cause is a mismatch in this judgement, too: the ranks are now known to have continued after the mismatch;
        * a rank died that had not given up, and the rank that all waited for came, and waits for the dead one.

        Args:
            causes: the keys of the findings that follow from no other.
        """
        cause = next((one for one in self.open_of(incident.run) if one.id == incident.cause), None)
        if finding.is_apart or cause is None or (finding.culprit_ranks and not cause.finding.culprit_ranks):
            return False
        if cause.finding.category.is_mismatch and causes & set(cause.keys):
            return False
        if finding.category is not Category.RANK_DEAD or causes & set(cause.keys):
            return True
        return set(finding.culprit_ranks) <= {*cause.finding.culprit_ranks, *cause.finding.ended_ranks}

    def _renew(
        self,
        run: Run,
        incident: Incident,
        finding: Finding,
        causes: set[str],
        now: float,
        wall: float,
        enqueued: float | None,
    ) -> list[IncidentChange]:
        incident.note_return(0.0 if enqueued is None else wall - enqueued, self._alert_after, now)
        if finding.key not in incident.keys:
            incident.keys.append(finding.key)
        cause = self._cause(incident.run, finding, set(), now) if finding.caused_by is not None else None
        changes: list[IncidentChange] = []
        if cause == incident.id:
            changes = self._turned(incident, finding, now)
            if not changes:
                return []  # its own consequence now looks like its cause: the first verdict stands
            cause = changes[0].incident.id
        if finding.caused_by is None and incident.cause is not None and self._still_follows(incident, finding, causes):
            cause = incident.cause
        said = with_hints(finding, incident.finding)
        finding = with_first_cause(said, incident.finding)
        is_added = finding is not said and finding.details != incident.finding.details
        stacks = {**incident.finding.stacks, **finding.stacks}
        finding = self._bounded(
            dataclasses.replace(
                finding,
                stacks={rank: text for rank, text in stacks.items() if rank in finding.culprit_ranks},
                stack_groups=finding.stack_groups or incident.finding.stack_groups,
                places={**still(incident.finding.places, finding), **finding.places},
                call_sites={**incident.finding.call_sites, **finding.call_sites},
            )
        )
        culprits = culprits_of(finding, run.ranks)
        before = essence_of(incident.finding, incident.cause, incident.culprits)
        if not is_added and essence_of(finding, cause, culprits) == before:
            return changes
        incident.take(finding, cause, culprits)
        if enqueued is not None:
            incident.started = enqueued if incident.started is None else min(incident.started, enqueued)
        incident.note_wait(wall)
        return changes + self._note_change(ChangeKind.UPDATED, incident, now)

    def _turned(self, incident: Incident, finding: Finding, now: float) -> list[IncidentChange]:
        """Make a consequence of an incident its cause, because more is known than when the incident opened.

        A mismatch is direct evidence; who waits for whom was concluded without it. If there is no mismatch, both must
        still be waits: over time, ranks that wait report more, and ranks that have given up report less.

        Args:
            finding: of the incident, now a consequence. The incident's other consequences follow from the cause, too.
        """
        key = finding.caused_by
        own = next((one for one in self.open_of(incident.run) if one.cause == incident.id and key in one.keys), None)
        if own is None or not (own.finding.category.is_mismatch or (waits(own.finding) and waits(finding))):
            return []
        own.cause = None
        own.take_labels()  # it has had no alert
        return self._note_change(ChangeKind.UPDATED, own, now) + self._hand_on(incident, own.id, now)

    def _resolve(self, incident: Incident, now: float, why: Resolution = Resolution.OVER) -> list[IncidentChange]:
        incident.state, incident.resolved, incident.resolution = RESOLVED, self._wall(), why
        self._note_resolved(incident)
        return self._note_change(ChangeKind.RESOLVED, incident, now)

    def _note_change(self, kind: ChangeKind, incident: Incident, now: float) -> list[IncidentChange]:
        self.changed[incident.run] = now
        incident.changed = self._wall()
        incident.revision += 1
        incident.changes += 1
        incident.note_hold(kind, self._alert_after, now)
        incident.data = incident.as_data()
        self._weigh(incident)
        return [IncidentChange(kind, incident, incident.data)]


def _files(run: Run) -> dict[int, str]:
    return {rank.rank: rank.file for rank in run.ranks.values() if rank.file}
