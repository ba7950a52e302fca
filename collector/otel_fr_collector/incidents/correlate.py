"""When to judge a run, and whether what the engine then says rests on fresh word of everybody it accuses.

Functions of a run's state and the time; the only state they change is which triggers are still pending.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_fr.match import CallState, Category, Ending, Finding
from otel_fr.match.endings import STOP_SIGNALS
from otel_fr.match.instances import InstanceKey
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.runs import Run
from otel_fr_collector.jobs.snapshot import WAIT_SHARE, Snapshot, reported_calls

MISMATCH_SETTLE = 0.3
"""Seconds after a disagreement in which the other ranks' calls arrive: who is odd is told by the majority."""
MISMATCH_PATIENCE = 1.5
"""Longest wait for members that have not shown their call: exporters send once a second."""
ENDED_SETTLE = 1.0
"""Seconds after a bad end in which the others' reports arrive: who failed first is told by all of them."""
STOPPED_SETTLE = 3.0
"""The same where the only ranks that ended badly were asked to stop: a job that is cancelled ends rank by rank."""
ENDED_MINIMUM = 0.2
"""Shortest such wait, when all others have reported since."""
FRESH_BEFORE = 0.3
"""Seconds before a call's threshold from which a report of an accused rank counts as fresh."""
MIN_INTERVAL = 0.25
"""Seconds between two diagnoses of one run."""
SLOW_INTERVAL = 2.0
"""The same once nothing has changed for `SLOW_AFTER` seconds."""
SLOW_AFTER = 30.0

MISMATCHES = frozenset(
    {
        Category.OP_MISMATCH,
        Category.SIZE_MISMATCH,
        Category.DTYPE_MISMATCH,
        Category.ROOT_MISMATCH,
        Category.REDUCE_OP_MISMATCH,
    }
)


@dataclass(frozen=True)
class Due:
    """Why a run is to be judged now."""

    mismatch: bool = False
    ended: bool = False
    stalled: bool = False
    news: bool = False

    def __bool__(self) -> bool:
        return self.mismatch or self.ended or self.stalled or self.news


def due(run: Run, now: float, *, has_open: bool, last_change: float, final: bool = False) -> Due:
    """Is it time to judge?

    Args:
        has_open: the run has an open incident, which news may change.
        last_change: when the run's incidents last changed (monotonic); negative infinity: never.
        final: the collector stops: what waits to settle is judged as it is.
    """
    if not final and now - run.diagnosed < max(MIN_INTERVAL, run.judging_took):
        return Due()
    oldest = oldest_wait(run, now)
    slow = not final and now - run.diagnosed < SLOW_INTERVAL
    quiet = now - max(last_change, run.first_heard) > SLOW_AFTER and (oldest is None or oldest > SLOW_AFTER)
    may = not (slow and quiet)
    return Due(
        mismatch=run.mismatch_since is not None and (final or _mismatch_settled(run, now)),
        ended=run.ended_since is not None and (final or _ended_settled(run, now)),
        stalled=oldest is not None and may,
        news=has_open and run.has_news and may,
    )


def oldest_wait(run: Run, now: float) -> float | None:
    """Seconds by which the longest wait of a live, reporting rank has passed its threshold; None: nobody waits."""
    worst: float | None = None
    for state in run.ranks.values():
        if state.report is None or state.ended is not None or not state.report.inflight:
            continue
        threshold = WAIT_SHARE * state.report.stall
        oldest = min((p.issued for p in state.report.inflight if p.issued is not None), default=now)
        if now - oldest < threshold or state.is_silent(now, run.silence_floor):
            continue
        for call in reported_calls(run, state):
            if call.key() is not None and call.issued is not None and now - call.issued >= threshold:
                over = now - call.issued - threshold
                worst = over if worst is None else max(worst, over)
    return worst


def mark_judged(run: Run, reason: Due, now: float) -> None:
    """A snapshot of the run is taken to be judged for that reason; what comes from now on waits for the next."""
    run.diagnosed = now
    run.has_news = False
    if reason.mismatch:
        run.mismatch_since = None
    if reason.ended:
        run.ended_since = None


def is_credible(taken: Snapshot, finding: Finding, reason: Due) -> bool:
    """Does the finding rest on fresh word of all it accuses, and of somebody who waits?

    A mismatch is positive evidence and needs only to have settled. A wait is evidence only together with a report
    of each accused rank from after the wait became long, or that rank's end, or its silence. What has come since the
    snapshot is no such word, for the finding does not know it.
    """
    if finding.category in MISMATCHES:
        return not taken.mismatch_pending or reason.mismatch
    if taken.ended_pending and not reason.ended:
        return False
    if finding.category is Category.RANK_DEAD:
        return True
    reached = _reached(taken, finding)
    waiting = [_has_word(taken, rank, reached) for rank in finding.waiting_ranks]
    if waiting and not any(waiting):
        return False
    return all(_has_word(taken, rank, reached) for rank in finding.culprit_ranks)


def has_completed(run: Run, finding: Finding) -> bool:
    """Is the collective that a wait was found in complete by now?"""
    if finding.category in MISMATCHES or finding.category is Category.RANK_DEAD or finding.group is None:
        return False
    key, group = instance_key_of(finding), run.groups.get(finding.group.id)
    return key is not None and group is not None and key not in group.open and key in group.closed


def has_moved_on(run: Run, finding: Finding) -> bool:
    """Has what the finding tells of ended well: nobody waits there any more, nobody failed there, it completed?"""
    if run.ended_clean:
        return True
    if finding.category in MISMATCHES or finding.category is Category.RANK_DEAD or finding.group is None:
        return False
    key = instance_key_of(finding)
    group = run.groups.get(finding.group.id)
    if group is None or key is None:
        return False
    if key not in group.open and key in group.closed:
        return True
    if any(call.state is CallState.FAILED for call in _instance_calls(group, key)):
        return False
    for rank in finding.waiting_ranks:
        state = run.ranks.get(rank)
        if state is None or state.ending not in (Ending.RUNNING, Ending.CLEAN):
            return False
        if any(call.key() == key for call in reported_calls(run, state)):
            return False
        if len(key) == 3 and key[1] == "collective" and state.progress.get(key[0], [0, 0])[1] < key[2]:
            return False
    return True


def instance_key_of(finding: Finding) -> InstanceKey | None:
    """The instance a finding shows in; None: in none."""
    if finding.group is None:
        return None
    if finding.p2p is not None:
        source, destination, tag, index = finding.p2p
        return finding.group.id, "p2p", source, destination, tag, index
    if finding.sequence_id is None:
        return None
    return finding.group.id, finding.stream, finding.sequence_id


def issue_time(taken: Snapshot, finding: Finding) -> float | None:
    """Unix time of the earliest known issue of the finding's collective, by the issuing ranks' clocks."""
    key = instance_key_of(finding)
    return taken.issued_wall.get(key) if key is not None else None


def _instance_calls(group: GroupState, key: InstanceKey) -> list[RankCall]:
    instance = group.open.get(key)
    return instance.all_calls() if instance is not None else []


def _reached(taken: Snapshot, finding: Finding) -> float:
    """When the finding's longest wait came within `FRESH_BEFORE` of its threshold, on our clock."""
    key = instance_key_of(finding)
    issued = taken.issued.get(key) if key is not None else None
    if issued is None:
        return taken.moment - MISMATCH_PATIENCE
    return issued + WAIT_SHARE * taken.stall - FRESH_BEFORE


def _has_word(taken: Snapshot, rank: int, reached: float) -> bool:
    reported = taken.reported_at.get(rank)
    return not taken.awaits_unheard if reported is None else reported >= reached


def _mismatch_settled(run: Run, now: float) -> bool:
    since = run.mismatch_since
    if since is None or now - since < MISMATCH_SETTLE:
        return False
    if now - since >= MISMATCH_PATIENCE:
        return True
    return all(
        len(instance.calls) >= instance.members > 0
        for group in run.groups.values()
        if group.disagreeing
        for instance in group.open.values()
        if instance.disagrees
    )


def _ended_settled(run: Run, now: float) -> bool:
    since = run.ended_since
    if since is None or now - since < ENDED_MINIMUM:
        return False
    bad = [state for state in run.ranks.values() if state.ending not in (Ending.RUNNING, Ending.CLEAN)]
    if bad and all(state.signal in STOP_SIGNALS for state in bad):
        return now - since >= STOPPED_SETTLE
    if now - since >= ENDED_SETTLE:
        return True
    known = run.world_size is None or len(run.ranks) >= run.world_size
    return known and all(state.arrived >= since for state in run.ranks.values())
