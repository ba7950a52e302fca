"""A run's state as evidence for the match engine: only what matters to a fault, so that it stays small."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from msgspec.structs import astuple

from otel_fr.match import (
    UNENDED,
    WAIT_SHARE,
    CallState,
    Ending,
    Evidence,
    Finding,
    Group,
    Overdue,
    Progress,
    Rank,
    window_of,
)
from otel_fr.match.facts.instances import InstanceKey
from otel_fr.match.facts.ranks import not_yet_here
from otel_fr.match.model import MessagePattern
from otel_fr.rank_report import DEFAULT_INTERVAL, RankReport
from otel_fr.stacks import Loop
from otel_fr_collector import timeline
from otel_fr_collector.jobs.calls import RankCall, expand
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.incomplete import IncompleteInstance
from otel_fr_collector.jobs.ranks import DESTROYED, RankState
from otel_fr_collector.jobs.run import MAX_RANKS_PER_RUN, Run

MAX_CALLS = 50_000
MAX_EXPECTED = MAX_RANKS_PER_RUN
"""Ranks of a run that may be named although they never reported, or there was no room for them."""
_Known = dict[tuple[int, int, bool, int | None, str], Progress]


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """The evidence for a run's verdict at one moment: nothing in it changes later.

    Attributes:
        moment: when it was taken (monotonic).
        until: rank -> the monotonic time up to which its calls in flight have aged.
        reported_at: rank -> when its last report was sent; infinity: no further report is expected.
        silent_since: rank that has fallen silent -> when its last report was sent.
        may_report_later: a rank that never reported may still do so.
        lacks_ranks: as in `Run`; a reason why ranks may be unheard.
        not_here: state of ranks that have not come to this run, from the run before it.
        mismatch_pending, bad_end_pending: a mismatch, or a bad end, has not been judged yet.
        enqueued_at: instance -> when the first call that waits there was enqueued, on the collector's clock.
        enqueued_wall: instance -> when its first call was enqueued, as far as known: Unix time by that rank's clock.
    """

    moment: float
    groups: dict[str, Group]
    calls: list[RankCall]
    stall: float
    world_size: int | None
    lacks_ranks: bool
    may_report_later: bool
    mismatch_pending: bool
    bad_end_pending: bool
    not_here: dict[int, Rank] = field(default_factory=dict)
    ranks: dict[int, Rank] = field(default_factory=dict)
    until: dict[int, float] = field(default_factory=dict)
    reported_at: dict[int, float] = field(default_factory=dict)
    silent_since: dict[int, float] = field(default_factory=dict)
    enqueued_at: dict[InstanceKey, float] = field(default_factory=dict)
    enqueued_wall: dict[InstanceKey, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How much there is to judge: ranks (also ones that never reported), members of waiting groups, and calls."""
        world = self.world_size or 0
        expected = world if world <= MAX_EXPECTED else 0
        waiting = {call.group for call in self.calls if call.state is not CallState.COMPLETED}
        members = sum(len(group.ranks) for name, group in self.groups.items() if name in waiting)
        return max(len(self.ranks), expected) + members + len(self.calls)

    def evidence(self) -> Evidence:
        """Convert to the match engine's `Evidence`; also fills ``enqueued_at`` and ``enqueued_wall``."""
        for call in self.calls:
            key = call.key()
            if key is None:
                continue
            if call.enqueued_at is not None and call.state in UNENDED:
                self.enqueued_at[key] = min(call.enqueued_at, self.enqueued_at.get(key, call.enqueued_at))
            if call.enqueued_wall is not None:
                self.enqueued_wall[key] = min(call.enqueued_wall, self.enqueued_wall.get(key, call.enqueued_wall))
        calls = [call.as_call(self.until.get(call.rank, self.moment)) for call in self.calls]
        if any(_needs_others(call) and call.state is not CallState.UNKNOWN for call in self.calls):
            for rank in _unheard(self):
                unknown = Rank(rank, ending=Ending.UNKNOWN, complete=False, has_gaps=self.lacks_ranks)
                self.ranks[rank] = self.not_here.get(rank, unknown)
        window = window_of(self.stall)
        return Evidence(groups=self.groups, calls=calls, ranks=self.ranks, window=window, world_size=self.world_size)

    def about(self, findings: Iterable[Finding]) -> Snapshot:
        """A smaller copy for these findings: no groups and calls, and only the ranks that they concern."""
        culprits = {rank for one in findings for rank in one.culprit_ranks}
        concerned = culprits.union(*(one.waiting_ranks for one in findings))
        return replace(
            self,
            groups={},
            calls=[],
            until={},
            not_here={},
            ranks={rank: info for rank, info in self.ranks.items() if rank in culprits},
            reported_at={rank: at for rank, at in self.reported_at.items() if rank in concerned},
        )


def largest_size(run: Run) -> int:
    """An upper bound of `Snapshot.size`: expected ranks, members of groups, and calls."""
    expected = min(run.world_size or 0, MAX_EXPECTED)
    return max(len(run.ranks), expected) + run.members + run.progress_entries + run.call_count


def snapshot(run: Run, now: float, wall: float = 0.0, before: Run | None = None) -> Snapshot:
    """Take a snapshot of the run at the monotonic time ``now``.

    Args:
        wall: Unix time.
        before: the run that its processes were in before; None: none is known, or all ranks have arrived.
    """
    stall, (floor, behind) = run.stall, run.unheard(now)
    taken = Snapshot(
        moment=now,
        groups={group_id: state.group for group_id, state in run.groups.items()},
        calls=[],
        stall=stall,
        world_size=run.world_size,
        lacks_ranks=run.lacks_ranks,
        may_report_later=now - behind - max(run.first_seen, floor) <= stall / 2,
        mismatch_pending=run.mismatch_since is not None,
        bad_end_pending=run.bad_end_since is not None,
    )
    calls = _Calls(run)
    for group in run.groups.values():
        calls.add_group(group)
    known: _Known = {}
    longest = max((state.silence for state in run.ranks.values() if state.ended is None), default=timeline.SILENCE)
    for state in run.ranks.values():
        calls.add_rank(state)
        silent = state.is_silent(now, floor, behind)
        until = taken.until[state.rank] = _until(state, now)
        taken.ranks[state.rank] = _rank(state, now, until, silent, longest, known)
        settled = state.report is None or state.ended is not None or silent
        taken.reported_at[state.rank] = math.inf if settled else state.sent
        if silent and state.report is not None:
            taken.silent_since[state.rank] = state.sent
            taken.ranks[state.rank].heard_at = wall - (now - state.sent) if wall else None
    taken.calls = calls.all()
    if before is not None:
        taken.not_here = not_yet_here(taken.ranks, run.world_size, snapshot(before, now, wall).ranks)
    return taken


def reported_calls(run: Run, state: RankState) -> list[RankCall]:
    """The calls the rank's report shows in flight, without those that are known to have ended since."""
    found: list[RankCall] = []
    for call in state.contents.inflight:
        group = run.groups.get(call.group)
        known = group.known(call) if group is not None else call
        if known is not None and known.state in UNENDED:
            found.append(known)
    return found


def _until(state: RankState, now: float) -> float:
    """Monotonic time up to which the rank's calls in flight have aged.

    A call ages as long as its rank lives and reports; later, its state is not known. The lag of a late report is
    subtracted, because it is not known whether the rank still waited after it sent the report.
    """
    return min(now - state.lag, state.ended if state.ended is not None else state.sent + state.silence)


def _rank(state: RankState, now: float, until: float, silent: bool, longest: float, known: _Known) -> Rank:
    """Convert to the match engine's `Rank`.

    Args:
        until: as in `Snapshot`.
        longest: seconds in which every rank that runs has reported. known: see `_progress`.
    """
    report = state.report
    ending = state.ending
    if ending is Ending.RUNNING and silent:
        ending = Ending.UNKNOWN
    since = 0.0 if state.ended is not None else _since(state, now)
    return Rank(
        rank=state.rank,
        ending=ending,
        signal=state.signal,
        exit_code=state.exit_code,
        kill_reason=state.kill_reason,
        ended_for_peer=state.ended_for_peer,
        exception="" if ending is Ending.CLEAN else state.exception,
        exception_site=_exception_site(state, ending),
        exiting=state.is_exiting,
        exit_message=state.exit_message,
        thread_exceptions=state.thread_exceptions,
        python_blocked=state.python_blocked,
        idle=report.idle_s + since if report and report.idle_s is not None else None,
        starved=_starved(report, since),
        completed_age=None if state.completed_at is None else max(0.0, until - state.completed_at),
        ended_for=max(0.0, now - state.ended - longest) if state.ended is not None else None,
        site=state.site,
        stack=state.stack,
        progress=_progress(state, known),
        has_gaps=state.has_gaps,
        complete=report is not None and report.in_flight_more == 0 and not silent,
        records_creations=report is not None and report.records_creations,
        unlisted=None if report is None or report.unlisted_s is None else report.unlisted_s + since,
        overdue=tuple([item._replace(age=item.age + since) for item in state.contents.overdue]),
        within=_within(state, now),
        ended_by_monitor=report is not None and report.on_hang == "kill" and state.ended is not None,
        file=state.file,
        doing=report.doing if report is not None else "",
        addresses=report.addresses if report is not None else (),
        unreached=report.unreached if report is not None else (),
        round_trips=trips_of(report),
        left_loops=loops_of(report),
        lines=state.lines,
        place=state.place,
        patterns=tuple([MessagePattern(*astuple(one)) for one in state.patterns]),
        decisions=state.decisions,
        step=state.decided_in,
    )


def _starved(report: RankReport | None, since: float) -> float:
    """Extend starved time beyond the report, in proportion to idle time. Otherwise, a rank that waits for a processor
    would seem to have got one just before each report."""
    if report is None or not report.idle_s:
        return 0.0
    return report.starved_s * (1.0 + since / report.idle_s)


def trips_of(report: RankReport | None) -> tuple[tuple[str, float], ...]:
    """`Rank.round_trips` from a report."""
    return () if report is None else tuple([(one.peer, one.seconds) for one in report.round_trips])


def loops_of(report: RankReport | None) -> tuple[Loop, ...]:
    """`Rank.left_loops` from a report."""
    return () if report is None else tuple([Loop(*astuple(one)) for one in report.left_loops])


def _within(state: RankState, now: float) -> Overdue | None:
    """The section that excuses the rank. After leaving it, the rank is excused until its next wait would count."""
    if state.report is None or state.contents.overdue or state.within is None:
        return None
    since = now - state.within_at
    is_in = state.contents.within is not None or since < WAIT_SHARE * state.report.stall_s
    return state.within._replace(age=state.within.age + since) if is_in else None


def _since(state: RankState, now: float) -> float:
    """Seconds in which the rank may have stood still since its report.

    A rank that moves as usual announces its next report, and reports at once if it stands still before that.
    """
    report = state.report
    announced = report.interval_s - DEFAULT_INTERVAL if report is not None and report.is_brief else 0.0
    return max(0.0, min(now - state.arrived, state.silence) - announced)


def _progress(state: RankState, known: _Known) -> dict[str, Progress]:
    """Progress by group. Ranks of a job are mostly level, so equal entries are created once and shared."""
    found: dict[str, Progress] = {}
    destroyed_at, newest = state.destroyed_at, state.newest_number
    for gid, own in state.progress.items():
        enqueued, completed, last, messages, of = own[:5]
        is_destroyed = last == DESTROYED or 0 < last < newest
        site = destroyed_at.get(gid, "") if destroyed_at else ""
        key = enqueued, completed, is_destroyed, messages if of == enqueued else None, site
        one = known.get(key)
        if one is None:
            one = known[key] = Progress(key[0], key[1], destroyed=key[2], messages=key[3], destroyed_at=key[4])
        found[gid] = one
    return found


def _exception_site(state: RankState, ending: Ending) -> str:
    """Where the rank raised the exception that ended it, or called ``sys.exit`` with a status other than 0."""
    if ending is Ending.CLEAN:
        return ""
    return state.exception_site or (state.exit_site if ending is Ending.RAISED else "")


class _Calls:
    """The calls that matter to a fault, each once. Instances take precedence over reports if both have the call."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[tuple[int, int, str, int], RankCall] = {}

    def _add(self, calls: Iterable[RankCall]) -> None:
        found = self._found
        for call in calls:
            if len(found) < MAX_CALLS:
                found.setdefault((call.rank, call.record, call.group, call.sequence_id), call)

    def add_group(self, group: GroupState) -> None:
        for instance in _relevant(group):
            self._add(instance.all_calls())

    def add_rank(self, state: RankState) -> None:
        said = state.contents
        if not (said.inflight or said.failed or said.last or state.latest):
            return
        self._add(reported_calls(self._run, state))
        self._add(said.failed)
        self._add([call for call in said.inflight if call.signature.destroys])
        if said.last is not None and said.last.state is not CallState.IN_FLIGHT:
            self._add([said.last])
        if state.latest:
            self._add(map(expand, state.latest.values()))

    def all(self) -> list[RankCall]:
        return [_ended(self._run, call) for call in self._found.values()]


def _ended(run: Run, call: RankCall) -> RankCall:
    """The call, marked as completed if the backend does not show its end but its instance is complete."""
    if call.state is not CallState.UNKNOWN:
        return call
    group = run.groups.get(call.group)
    if group is None or group.known(call) is not None:
        return call
    return call._replace(state=CallState.COMPLETED)


def _relevant(group: GroupState) -> list[IncompleteInstance]:
    """Mismatched instances, with their neighbours, and instances in which a call is in flight or has failed."""
    chosen: dict[InstanceKey, IncompleteInstance] = {}
    for key, instance in group.incomplete.items():
        if instance.disagrees:
            chosen[key] = instance
            if len(key) == 3:
                for number in (key[2] - 1, key[2] + 1):
                    beside = group.incomplete.get((key[0], key[1], number))
                    if beside is not None:
                        chosen[beside.key] = beside
        elif instance.unsettled:
            chosen[key] = instance
    return list(chosen.values())


def _needs_others(call: RankCall) -> bool:
    """Whether the call has not completed and may wait for other ranks."""
    return call.state is not CallState.COMPLETED and not call.signature.destroys


def _unheard(taken: Snapshot) -> set[int]:
    """Ranks that should have reported: of the world, and members of the groups in which a rank waits."""
    world, known = taken.world_size, taken.ranks.keys()
    unheard = set(range(world)) - known if world is not None and world <= MAX_EXPECTED else set()
    for gid in {call.group for call in taken.calls if _needs_others(call)}:
        group = taken.groups.get(gid)
        others = set(group.ranks) - known - unheard if group is not None else set()
        if len(unheard) + len(others) <= MAX_EXPECTED:
            unheard |= others
    return unheard
