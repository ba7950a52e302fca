"""Whether a finding is credible: it rests on recent reports of its culprits, and it still holds.

Pure functions of a run's state, a snapshot and a finding.
"""

from __future__ import annotations

from otel_fr.match import CallState, Category, Ending, Finding
from otel_fr.match.facts.instances import InstanceKey, key_of_finding
from otel_fr.match.facts.recording import went_on_for
from otel_fr_collector import timeline
from otel_fr_collector.incidents.triggers import Triggers, said_from
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import Snapshot, reported_calls

OVERDUE = frozenset({Category.HEARTBEAT_MISSED, Category.SECTION_OVERRUN})

_MAY_HAVE_GONE_ON = (Ending.RUNNING, Ending.CLEAN, Ending.KILLED)
"""Endings that are not due to a failed call, if the rank has completed another call since."""


def is_credible(run: Run, taken: Snapshot, finding: Finding, reason: Triggers) -> bool:
    """Whether the finding rests on recent reports of every culprit, and of some rank that waits.

    A mismatch is positive evidence, and only needs to have settled. A wait also needs evidence about each culprit: a
    report from after the wait became long, the rank's end, or its silence. If all ranks concerned fell silent before
    that, there is no evidence: the collector may be cut off from a running job. A report that arrived after the
    snapshot counts if it shows that the culprit has not moved since (`_stands_still`): judging thousands of ranks takes
    longer than the time between two reports of one rank.
    """
    if finding.category.is_mismatch:
        return not taken.mismatch_pending or reason.mismatch
    if taken.bad_end_pending and not reason.bad_end:
        return False
    if finding.category is Category.RANK_DEAD:
        return True
    reached = _reached(taken, finding)
    waiting = [_is_fresh(taken, rank, reached) for rank in finding.waiting_ranks]
    if waiting and not any(waiting):
        return False
    concerned = (*finding.waiting_ranks, *finding.culprit_ranks)
    if concerned and all(taken.silent_since.get(rank, reached) < reached for rank in concerned):
        return False
    return all(
        _is_fresh(taken, rank, reached) or _stands_still(run, taken, rank, reached) for rank in finding.culprit_ranks
    )


def has_completed(run: Run, finding: Finding) -> bool:
    """Whether the collective that ranks waited in has completed since."""
    waited = _waited_in(run, finding)
    if waited is None:
        return False
    key, group = waited
    return key not in group.incomplete and key in group.completed


def _waited_in(run: Run, finding: Finding) -> tuple[InstanceKey, GroupState] | None:
    """The collective in which ranks wait; None: the finding is about something else."""
    key = key_of_finding(finding)
    group = None if finding.group is None else run.groups.get(finding.group.id)
    if finding.category.is_mismatch or finding.category is Category.RANK_DEAD or key is None or group is None:
        return None
    return key, group


def has_moved_on(run: Run, finding: Finding) -> bool:
    """Whether the faulty collective has ended well: no rank waits in it any more and none failed, or it completed."""
    if run.ended_clean:
        return True
    waited = _waited_in(run, finding)
    if finding.category in OVERDUE and (waited is None or _have_joined(run, finding)):
        return not any(_is_overdue(run, rank) for rank in finding.culprit_ranks or finding.waiting_ranks)
    if waited is None:
        return False
    if has_completed(run, finding):
        return True
    key, group = waited
    instance = group.incomplete.get(key)
    calls = [] if instance is None else instance.all_calls()
    failed = [call for call in calls if call.state is CallState.FAILED]
    if not all(_is_caught(run, call) for call in failed):
        return False
    gone_on = {call.rank for call in failed}
    for rank in finding.waiting_ranks:
        if rank in gone_on:
            continue  # the call failed, so the rank's progress does not count it
        state = run.ranks.get(rank)
        if state is None or state.ending not in (Ending.RUNNING, Ending.CLEAN):
            return False
        if any(call.key() == key for call in reported_calls(run, state)):
            return False
        if len(key) == 3 and key[1] == "collective" and state.progress.get(key[0], [0, 0])[1] < key[2]:
            return False
    return True


def _have_joined(run: Run, finding: Finding) -> bool:
    """Whether its culprits have enqueued the collective in which ranks waited for them."""
    if finding.group is None or finding.sequence_id is None or finding.stream != "collective":
        return False
    of_group = [run.ranks[rank].progress.get(finding.group.id) for rank in finding.culprit_ranks if rank in run.ranks]
    return bool(of_group) and all(own is not None and own[0] >= finding.sequence_id for own in of_group)


def _is_overdue(run: Run, rank: int) -> bool:
    """Whether something is overdue in the rank's latest report, and the rank has not ended well since."""
    state = run.ranks.get(rank)
    if state is None or state.report is None or state.ending is Ending.CLEAN:
        return False
    return bool(state.contents.overdue)


def _is_caught(run: Run, failed: RankCall) -> bool:
    """Whether the rank of a failed call has not ended on its own, and has completed a call that it enqueued since."""
    state = run.ranks.get(failed.rank)
    if state is None or state.ending not in _MAY_HAVE_GONE_ON or state.completed_at is None:
        return False
    return went_on_for(failed.as_call(run.last_seen), run.last_seen - state.completed_at) is not None


def enqueue_time(taken: Snapshot, finding: Finding) -> float | None:
    """Unix time at which the finding's collective was first enqueued, by the ranks' own clocks; None: not known."""
    key = key_of_finding(finding)
    return taken.enqueued_wall.get(key) if key is not None else None


def _reached(taken: Snapshot, finding: Finding) -> float:
    """Monotonic time from which a report shows that the finding's longest wait is too long."""
    key = key_of_finding(finding)
    enqueued_at = taken.enqueued_at.get(key) if key is not None else None
    if enqueued_at is None:
        return taken.moment - timeline.MISMATCH_PATIENCE
    return said_from(enqueued_at, taken.stall)


def _is_fresh(taken: Snapshot, rank: int, reached: float) -> bool:
    reported = taken.reported_at.get(rank)
    return not taken.may_report_later if reported is None else reported >= reached


def _stands_still(run: Run, taken: Snapshot, rank: int, reached: float) -> bool:
    """Whether a report sent after the snapshot, and late enough, shows that the rank has not moved since."""
    state, then = run.ranks.get(rank), taken.ranks.get(rank)
    before = taken.reported_at.get(rank)
    if state is None or then is None or before is None or state.report is None or state.ended is not None:
        return False
    if state.sent < reached or state.ending is not then.ending:
        return False
    if state.report.idle_s is None or state.report.idle_s < state.sent - before:
        return False
    now = {group: (own[0], own[1]) for group, own in state.progress.items()}
    return now == {group: (own.enqueued, own.completed) for group, own in then.progress.items()}
