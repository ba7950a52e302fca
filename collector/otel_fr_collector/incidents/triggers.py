"""When to judge a run: what has arrived that a verdict should take into account, and whether it has settled."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from otel_fr.match import WAIT_SHARE, Ending
from otel_fr_collector import timeline
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import reported_calls
from otel_fr_collector.jobs.stops import has_ended, may_follow_a_stop

WAITED_SHARE = 0.5
"""The next judgement waits for this share of the last one's elapsed time. The last one may have waited for a processor,
and so may reports, which come first. The pause is short: the next verdict may have the reports that this one lacked."""

FAILED_PAUSE = 5.0
"""Seconds before a run is judged again after its judgement failed."""


class Waits(NamedTuple):
    """How long the ranks of a run have waited.

    Attributes:
        over: seconds by which the longest wait of a live, reporting rank has passed its threshold; None: none has.
        next_at: when the next known wait passes its threshold, unless it ends before (monotonic); infinity: none.
        is_overdue: a live rank's latest report shows an overdue heartbeat or section.
        longest: the call that ``over`` is about.
    """

    over: float | None
    next_at: float
    is_overdue: bool
    longest: RankCall | None = None


@dataclass(frozen=True)
class Triggers:
    """The reasons to judge a run now; false if there is none.

    Attributes:
        mismatch, bad_end: a mismatch, or a bad end, has settled.
        stalled: some rank waits for longer than the threshold, or has missed a heartbeat or overrun a section.
        news: something arrived that may change an open incident, or a rank has fallen silent.
        next_wait_at: when the next wait passes its threshold, if waits were checked (monotonic). It is not a reason.
    """

    mismatch: bool = False
    bad_end: bool = False
    stalled: bool = False
    news: bool = False
    next_wait_at: float = math.inf

    def __bool__(self) -> bool:
        return self.mismatch or self.bad_end or self.stalled or self.news


class Pending(NamedTuple):
    """The pending events that a judgement covers. The attributes are as in `Run`."""

    has_news: bool = False
    mismatch_since: float | None = None
    bad_end_since: float | None = None


NOTHING_PENDING = Pending()


@dataclass(slots=True)
class Judging:
    """What the judge remembers of one run between two judgements. Times are monotonic.

    Attributes:
        judged_at: when the run was last judged.
        look_at: before this time, nothing checks whether to judge it.
        next_wait_at: when the next wait becomes too long, as of the last check; infinity: none does.
        slowness_at: when the run was last checked for ranks that always come last.
        pause: shortest time until the run is judged again, in seconds (`triggers.due`).
        silent: the ranks that were silent at the last judgement. files_seen: `Run.files_noted` at the last check.
        pending: what the judgement in progress covers.
        failing_since, failed_at: when the first and the last of the latest failures in a row happened.
    """

    judged_at: float = -math.inf
    look_at: float = -math.inf
    next_wait_at: float = math.inf
    slowness_at: float = -math.inf
    pause: float = 0.0
    silent: frozenset[int] = frozenset()
    files_seen: int = 0
    pending: Pending = NOTHING_PENDING
    failing_since: float = math.inf
    failed_at: float = -math.inf

    def begin(self, run: Run, reason: Triggers, now: float) -> None:
        """Note that a judgement of the run begins. What arrives later waits for the next one."""
        self.judged_at = now
        mismatch_since = run.mismatch_since if reason.mismatch else None
        bad_end_since = run.bad_end_since if reason.bad_end else None
        self.pending = Pending(run.has_news, mismatch_since, bad_end_since)
        run.has_news = False
        if reason.mismatch:
            run.mismatch_since = None
        if reason.bad_end:
            run.bad_end_since = None

    def put_back(self, run: Run) -> None:
        """Make pending again what the judgement in progress covers, because it has no verdict."""
        taken, self.pending = self.pending, NOTHING_PENDING
        run.has_news = run.has_news or taken.has_news
        if taken.mismatch_since is not None:
            run.mismatch_since = taken.mismatch_since
        if taken.bad_end_since is not None:
            run.bad_end_since = taken.bad_end_since

    def note_verdict(self, now: float, silent: Iterable[int], *, seconds: float, cpu: float) -> None:
        """Note that a judgement ended now. The next one comes after a pause.

        Args:
            seconds: elapsed time of the judgement. cpu: its CPU time in seconds.
        """
        self.judged_at, self.silent = now, frozenset(silent)
        self.pending, self.failing_since = NOTHING_PENDING, math.inf
        self.pause = max(cpu, WAITED_SHARE * seconds)

    def note_failure(self, run: Run, now: float) -> None:
        """Note that a judgement of the run failed now, maybe because memory or processes ran out."""
        self.put_back(run)
        if now - self.failed_at > timeline.FAILING_SECONDS:
            self.failing_since = math.inf
        self.failing_since = min(self.failing_since, now)
        self.judged_at = self.failed_at = now
        self.pause = FAILED_PAUSE

    def keeps_failing(self, now: float) -> bool:
        """Whether there were judgements in the last minutes, and all failed."""
        longest = timeline.FAILING_SECONDS
        return self.failed_at - self.failing_since >= longest and now - self.failed_at <= longest


def due(run: Run, judging: Judging, now: float, *, has_open: bool, last_change: float, final: bool = False) -> Triggers:
    """The reasons to judge the run now.

    Args:
        judging: how it was judged before.
        has_open: the run has an open incident, which news may change.
        last_change: when the run's incidents last changed (monotonic); negative infinity: never.
        final: the collector stops, so nothing is left to settle.
    """
    pause = judging.pause * (timeline.OPEN_PAUSE if has_open else 1.0)
    if not final and now - judging.judged_at < max(timeline.MIN_INTERVAL, pause):
        return Triggers()
    waits = look_at_waits(run, now)
    slow = not final and now - judging.judged_at < timeline.SLOW_INTERVAL
    unchanged = now - max(last_change, run.first_seen)
    quiet = min(unchanged, math.inf if waits.over is None else waits.over) > timeline.SLOW_AFTER
    may = not (slow and quiet)
    return Triggers(
        mismatch=run.mismatch_since is not None and (final or _mismatch_settled(run, now)),
        bad_end=run.bad_end_since is not None and (final or _bad_end_settled(run, now)),
        stalled=may and (waits.is_overdue or _has_settled(run, waits, now)),
        news=has_open and may and (run.has_news or _has_fallen_silent(run, judging.silent, now)),
        next_wait_at=waits.next_at,
    )


def _has_fallen_silent(run: Run, before: Container[int], now: float) -> bool:
    """Whether a rank has fallen silent that was not silent ``before``. No report shows this."""
    floor, behind = run.unheard(now)
    states = (state for state in run.ranks.values() if state.report is not None and state.rank not in before)
    return any(state.is_silent(now, floor, behind) for state in states)


def _has_settled(run: Run, waits: Waits, now: float) -> bool:
    """Whether a wait is too long, and the ranks that the longest one waits for have reported since, or are silent.

    Nothing is known yet of a rank that has not reported since, and judging 100,000 ranks takes seconds.
    """
    call, over = waits.longest, waits.over
    if call is None or over is None:
        return False
    if call.stream == "p2p" or call.enqueued_at is None or over > timeline.SAID_PATIENCE:
        return True
    floor, behind = run.unheard(now)
    level = run.levels.by_group().of(call.group)
    said = said_from(call.enqueued_at, run.stall)
    lacked = (run.ranks[rank] for rank in level.ranks[level.enqueued < call.sequence_id].tolist())
    return all(one.ended is not None or one.sent >= said or one.is_silent(now, floor, behind) for one in lacked)


def said_from(enqueued_at: float, stall: float) -> float:
    """Monotonic time from which a report with a call in flight shows a wait.

    It is `timeline.FRESH_BEFORE` before the threshold of the wait. If only an earlier report shows the call in flight,
    the call has mostly ended since.

    Args:
        stall: for a wait, the stall time of its rank; for a verdict, the shortest one of its run.
    """
    return enqueued_at + WAIT_SHARE * stall - timeline.FRESH_BEFORE


def look_at_waits(run: Run, now: float) -> Waits:
    """Which waits of live, reporting ranks have passed their threshold, and when the next one does.

    A wait counts once a report that was sent late enough shows it (`said_from`).
    """
    over: float | None = None
    longest: RankCall | None = None
    next_at = math.inf
    is_overdue = False
    floor, behind = run.unheard(now)
    for state in run.waiting.values():
        report = state.report
        if report is None or state.ended is not None:
            continue
        is_overdue = is_overdue or bool(state.contents.overdue)
        oldest = math.inf
        for call in state.contents.inflight:
            if call.enqueued_at is not None and call.enqueued_at < oldest:
                oldest = call.enqueued_at
        threshold = WAIT_SHARE * report.stall_s
        most = now - oldest - threshold
        if most < 0.0:
            next_at = min(next_at, oldest + threshold)
        elif (
            (over is None or most > over)
            and said_from(oldest, report.stall_s) <= state.sent
            and not state.is_silent(now, floor, behind)
        ):
            for call in reported_calls(run, state):
                if call.key() is not None and call.enqueued_at is not None:
                    own = now - call.enqueued_at - threshold
                    if own >= max(0.0, over or 0.0) and said_from(call.enqueued_at, report.stall_s) <= state.sent:
                        over, longest = own, call
    return Waits(over, next_at, is_overdue, longest)


def _mismatch_settled(run: Run, now: float) -> bool:
    since = run.mismatch_since
    if since is None or now - since < timeline.MISMATCH_SETTLE:
        return False
    is_asked = any(
        run.groups[gid].shows_disagreement(one.first, one.last) for gid, one in run.differences.inquiries.items()
    )
    if now - run.lateness(now) - since >= timeline.MISMATCH_PATIENCE + (timeline.ANSWER_SECONDS if is_asked else 0.0):
        return True
    return all(
        len(instance.calls) >= instance.members > 0
        for group in run.groups.values()
        if group.disagreeing
        for instance in group.incomplete.values()
        if instance.disagrees
    )


def _bad_end_settled(run: Run, now: float) -> bool:
    since = run.bad_end_since
    if since is None or now - since < timeline.BAD_END_MINIMUM:
        return False
    heard, states = now - run.lateness(now), run.ranks.values()
    bad = [state for state in states if state.ending not in (Ending.RUNNING, Ending.CLEAN)]
    may_follow = bool(bad) and all(map(may_follow_a_stop, bad))
    is_left = any(state.is_exiting and state.ended is None and not state.exception for state in states)
    if may_follow or is_left:
        return heard - since >= timeline.STOPPED_SETTLE or has_ended(run)
    return heard - since >= timeline.BAD_END_SETTLE or (run.is_whole and all(state.sent >= since for state in states))
