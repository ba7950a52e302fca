"""What recorders show of a simulated job at one moment: the match engine's evidence."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec.structs import astuple

from otel_fr.dumps.message_patterns import OwnCall, message_patterns
from otel_fr.match import UNENDED, Call, CallState, Ending, Evidence, Progress, Rank
from otel_fr.match.model import MessagePattern
from tests.support.random_jobs.simulation import Place, SimulatedCall, Simulation

WINDOW = 2.0
"""Seconds in flight after which a call counts as waiting."""


@dataclass(slots=True, kw_only=True)
class View:
    """How a job is recorded.

    Attributes:
        form: "files": all calls that the rings still have, except collectives that all members completed with arguments
            that fit. "live": the calls that the collector keeps: instances with a call in flight or failed, instances
            whose calls disagree, with their neighbours, and each rank's newest calls.
        ring: calls that each recorder keeps (files). ages: calls have ages (not in PyTorch's files).
        ends_shown: False: the backend does not show when calls end. Then, live, an instance that all members have
            joined counts as complete, and only the newest call of each rank and group can be open.
    """

    form: Literal["files", "live"] = "files"
    ring: int = 1 << 30
    ages: bool = True
    ends_shown: bool = True


@dataclass(slots=True)
class Ends:
    """How ranks ended, and other facts about their processes.

    Attributes:
        at: rank -> when it ended. infos: rank -> facts about its process, without its calls.
    """

    at: dict[int, float] = field(default_factory=dict)
    infos: dict[int, Rank] = field(default_factory=dict)


def without(found: Evidence, absent: frozenset[int]) -> Evidence:
    """Return the evidence without these ranks' files."""
    unheard = {rank: Rank(rank, ending=Ending.UNKNOWN, complete=False) for rank in absent}
    calls = [call for call in found.calls if call.rank not in absent]
    return replace(found, calls=calls, ranks={**found.ranks, **unheard})


def evidence(
    job: Simulation, view: View, now: float, ends: Ends | None = None, lags: Mapping[int, float] | None = None
) -> Evidence:
    """Return the evidence at ``now`` (seconds since the start of the job).

    Args:
        lags: rank -> seconds by which its newest known record is older than ``now``.
    """
    ends = ends or Ends()
    lags = lags or {}
    moments = {rank: min(now - lags.get(rank, 0.0), ends.at.get(rank, now)) for rank in job.calls}
    known = {rank: _until(calls, moments[rank]) for rank, calls in job.calls.items()}
    ranks = {
        rank: _rank(rank, known[rank], moments[rank], now, now - max(lags.values(), default=0.0), view, ends)
        for rank in job.calls
    }
    if view.form == "files":
        for rank, calls in known.items():
            lost = calls[: max(0, len(calls) - view.ring)]
            if any(call.ended > moments[rank] for call in lost):
                ranks[rank].complete = False
            known[rank] = calls[len(lost) :]
            if not view.ages:  # without a message in the file, nobody knows how many its rank has enqueued
                kept = {call.op.group.id for call in known[rank] if call.op.is_message}
                for call in lost:
                    if call.op.is_message and call.op.group.id not in kept:
                        ranks[rank].progress[call.op.group.id].messages = None
    for rank, calls in known.items():
        ranks[rank].patterns = _patterns(calls, moments[rank], view)
    chosen = _of_files(known, moments, view) if view.form == "files" else _live(known, moments, view)
    joined = set[Place]()
    if view.form == "live" and not view.ends_shown:
        joined = {place for place, own in by_place(known).items() if len(own) == len(own[0].members) and _alike(own)}
    found = [
        _call(job, call, moments[call.rank], min(now, ends.at.get(call.rank, now)), view, joined) for call in chosen
    ]
    groups = {group.id: group for group in job.program.groups}
    return Evidence(groups=groups, calls=found, ranks=ranks, window=WINDOW, world_size=job.program.world)


def _until(calls: list[SimulatedCall], moment: float) -> list[SimulatedCall]:
    return calls[: bisect_right(calls, moment, key=lambda call: call.enqueued)]


def _rank(
    rank: int, calls: list[SimulatedCall], moment: float, now: float, seen_by: float, view: View, ends: Ends
) -> Rank:
    """``seen_by``: the time up to which the records of all ranks are known."""
    info = replace(ends.infos[rank]) if rank in ends.infos else Rank(rank)
    info.progress = {}
    if rank in ends.at and ends.at[rank] > moment:  # its end is not known yet
        info = Rank(rank, thread_exceptions=info.thread_exceptions)
    for call in calls:
        progress = info.progress.get(call.op.group.id)
        if progress is None:
            progress = info.progress[call.op.group.id] = Progress(0, 0, messages=0)
        if call.op.signature.new_group is not None:
            continue
        if call.op.is_message:
            progress.messages = call.number
            continue
        progress.enqueued = call.number
        if call.ended <= moment and call.state is CallState.COMPLETED and view.ends_shown:
            progress.completed = max(progress.completed or 0, call.number)
    moved = max((max(c.enqueued, c.ended if c.ended <= moment else 0.0) for c in calls[-40:]), default=0.0)
    if info.ending is not Ending.RUNNING and view.form == "live":
        info.ended_for = max(0.0, seen_by - ends.at[rank])
    info.idle = (ends.at.get(rank, now) if info.ending is not Ending.RUNNING else now) - moved
    done = [call for call in calls if call.ended <= moment and call.state is CallState.COMPLETED]
    if done and view.ages and view.ends_shown:
        info.completed_age = min(now, ends.at.get(rank, now)) - done[-1].enqueued
    return info


def _patterns(calls: list[SimulatedCall], moment: float, view: View) -> tuple[MessagePattern, ...]:
    own: list[OwnCall] = []
    for call in calls:
        is_completed = view.ends_shown and call.ended <= moment and call.state is CallState.COMPLETED
        ends = (*call.place[1:3], call.op.signature.tag or 0) if len(call.place) == 5 else None
        own.append(OwnCall(call.record, call.op.group.id, is_completed, call.number, ends))
    return tuple([MessagePattern(*astuple(one)) for one in message_patterns(own)])


def by_place(known: Mapping[int, list[SimulatedCall]]) -> dict[Place, list[SimulatedCall]]:
    found: dict[Place, list[SimulatedCall]] = {}
    for calls in known.values():
        for call in calls:
            found.setdefault(call.place, []).append(call)
    return found


def _alike(calls: list[SimulatedCall]) -> bool:
    return len({call.op.token for call in calls}) == 1


def is_decided(calls: list[SimulatedCall], moments: Mapping[int, float]) -> bool:
    """Return True if records show that all members completed the instance with arguments that fit."""
    return (
        len(calls) == len(calls[0].members)
        and _alike(calls)
        and all(c.ended <= moments[c.rank] and c.state is CallState.COMPLETED for c in calls)
    )


def _of_files(
    known: Mapping[int, list[SimulatedCall]], moments: Mapping[int, float], view: View
) -> list[SimulatedCall]:
    chosen: list[SimulatedCall] = [calls[-1] for calls in known.values() if calls]
    newest = set(chosen)
    for calls in by_place(known).values():
        if not view.ends_shown or not is_decided(calls, moments):
            chosen += [call for call in calls if call not in newest]
    return chosen


def _live(known: Mapping[int, list[SimulatedCall]], moments: Mapping[int, float], view: View) -> list[SimulatedCall]:
    places = by_place(known)
    chosen: dict[SimulatedCall, None] = {}
    for calls in known.values():
        newest: dict[object, SimulatedCall] = {}
        for call in calls:
            newest[call.op.group.id] = call
        chosen.update(dict.fromkeys(newest.values()))
    for place, calls in places.items():
        if not _alike(calls):
            wanted = [place]
            if len(place) == 2:
                wanted += [(place[0], place[1] + beside) for beside in (-1, 1)]
            for key in wanted:
                chosen.update(dict.fromkeys(places.get(key, ())))
        elif view.ends_shown and any(c.ended > moments[c.rank] or c.state is CallState.FAILED for c in calls):
            chosen.update(dict.fromkeys(calls))
    return list(chosen)


def _call(job: Simulation, call: SimulatedCall, moment: float, until: float, view: View, joined: set[Place]) -> Call:
    """``joined``: instances that count as complete because all members have joined them."""
    ended = call.ended <= moment
    state = call.state if ended else CallState.IN_FLIGHT
    if not view.ends_shown and state is not CallState.FAILED:
        state = CallState.COMPLETED if call.place in joined else CallState.UNKNOWN
    open_ = state in UNENDED
    return Call(
        rank=call.rank,
        group=call.op.group.id,
        stream="p2p" if call.op.is_message else "group" if call.op.signature.new_group is not None else "collective",
        sequence_id=call.number,
        record=call.record,
        signature=call.op.signature,
        state=state,
        pair_index=call.pair_index,
        age=until - call.enqueued if view.ages and state is not CallState.COMPLETED else None,
        duration=call.ended - call.enqueued if not open_ else None,
        gap=max(0.0, call.gap),
        timeout=job.timeout,
        error=call.error if state is CallState.FAILED else None,
        site=call.op.site,
    )
