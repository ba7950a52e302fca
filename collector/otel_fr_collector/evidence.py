"""A run's state as the evidence the match engine judges: only what bears on a fault, so that it stays small."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr.match import Call, Ending, Evidence, Group, Rank, Standing, State
from otel_fr.match.instances import InstanceKey
from otel_fr_collector.calls import UNENDED, Part, part_of
from otel_fr_collector.groups import GroupState, OpenInstance
from otel_fr_collector.runs import SILENCE, RankState, Run

WAIT_SHARE = 0.87
"""Share of a rank's stall time after which its call counts as waiting: the rest is the way to the alert."""
EPSILON = 0.05
"""Seconds by which the engine's window is shorter, so that what made us ask counts as waiting there too."""
MAX_CALLS = 50_000


def window(run: Run) -> float:
    """Seconds in flight after which a call counts as waiting."""
    return WAIT_SHARE * run.stall


def build(run: Run, now: float) -> Evidence:
    """The evidence of one run at the monotonic time ``now``."""
    groups = {gid: place.group for gid, place in run.groups.items()}
    parts = _parts(run)
    ranks = {state.rank: _rank(run, state, now) for state in run.ranks.values()}
    calls = [_aged(part, run, now) for part in parts]
    if any(part.state in (State.IN_FLIGHT, State.FAILED) for part in parts):
        for rank in _expected(run, groups, parts):
            ranks.setdefault(rank, Rank(rank, ending=Ending.UNKNOWN, complete=False))
    return Evidence(groups, calls, ranks, max(0.0, window(run) - EPSILON), run.world_size)


def reported_parts(run: Run, state: RankState) -> list[Part]:
    """The calls the rank's report shows in flight, without those that are known to have ended since."""
    report = state.report
    found: list[Part] = []
    for part in report.inflight if report is not None else ():
        place = run.groups.get(part.group)
        known = place.known(part) if place is not None else part
        if known is not None and known.state in UNENDED:
            found.append(known)
    return found


def _rank(run: Run, state: RankState, now: float) -> Rank:
    report = state.report
    silent = state.is_silent(now, run.silence_floor)
    ending = state.ending
    if ending is Ending.RUNNING and silent:
        ending = Ending.UNKNOWN
    since = 0.0 if state.ended is not None else min(now - state.arrived, SILENCE)
    return Rank(
        rank=state.rank,
        ending=ending,
        signal=state.signal,
        exit_code=state.exit_code,
        exception=state.exception,
        exception_site=state.exception_site,
        python_blocked=state.python_blocked,
        idle=report.idle + since if report and report.idle is not None else None,
        site=state.site,
        stack=state.stack,
        standings={gid: Standing(own[0], own[1]) for gid, own in state.standings.items()},
        complete=report is not None and report.inflight_more == 0 and not silent,
        file=state.file,
    )


def _aged(part: Part, run: Run, now: float) -> Call:
    """A call ages as long as its rank lives and reports; what became of it after that nobody knows."""
    state = run.ranks.get(part.rank)
    if state is not None and part.issued is not None:
        now = min(now, state.ended if state.ended is not None else state.arrived + SILENCE)
    return part.call(now)


def _parts(run: Run) -> list[Part]:
    found: dict[tuple[int, int, str, int], Part] = {}

    def add(parts: Iterable[Part]) -> None:
        for part in parts:
            if len(found) < MAX_CALLS:
                found.setdefault((part.rank, part.record, part.group, part.sequence_id), part)

    for place in run.groups.values():
        for instance in _telling(place):
            add(instance.all_parts())
    for state in run.ranks.values():
        add(reported_parts(run, state))
        if state.report is not None:
            add(state.report.failed)
            if state.report.last is not None and state.report.last.state is not State.IN_FLIGHT:
                add([state.report.last])
        add(part_of(word) for word in state.latest.values())
    return list(found.values())


def _telling(place: GroupState) -> list[OpenInstance]:
    """Instances that disagree, with their neighbours, and those in which a call is in flight or has failed."""
    chosen: dict[InstanceKey, OpenInstance] = {}
    for key, instance in place.open.items():
        if instance.disagrees:
            chosen[key] = instance
            if len(key) == 3:
                for number in (key[2] - 1, key[2] + 1):
                    beside = place.open.get((key[0], key[1], number))
                    if beside is not None:
                        chosen[beside.key] = beside
        elif not instance.is_settled:
            chosen[key] = instance
    return list(chosen.values())


def _expected(run: Run, groups: dict[str, Group], parts: list[Part]) -> set[int]:
    """Every rank that should be there: the world's, and the members of the groups somebody waits in."""
    expected = set(range(run.world_size)) if run.world_size is not None and run.world_size <= 65_536 else set()
    for gid in {part.group for part in parts if part.state is not State.COMPLETED}:
        group = groups.get(gid)
        if group is not None:
            expected.update(group.ranks)
    return expected
