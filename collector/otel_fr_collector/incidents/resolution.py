"""Why an incident is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from otel_fr.incident import ResolutionName
from otel_fr_collector import timeline
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.stops import has_ended, was_stopped_from_outside


class Resolution(Enum):
    """Why an incident has ended."""

    _value_: ResolutionName

    OVER = "over"
    """The fault is over: its ranks continue, or have ended well."""
    ENDED = "ended"
    """All ranks of the job have ended because of the fault."""
    STOPPED = "stopped"
    """The job was stopped from outside."""
    REPLACED = "replaced"
    """The job continues in another run: a newer attempt, or without the ranks that failed."""
    UNHEARD = "unheard"
    """The run has sent nothing for `timeline.UNHEARD_SECONDS`."""
    DROPPED = "dropped"
    """There were too many open incidents."""


def why_over(run: Run, accused: Mapping[int, float], now: float, *, is_judged: bool) -> Resolution | None:
    """Why the incidents of a run end although their faults are not over; None: they do not end.

    Args:
        accused: their culprits, and when each was first accused (monotonic).
        is_judged: no judgement of the run is in progress.
    """
    if run.is_replaced:
        return Resolution.REPLACED
    quiet = now - run.last_seen
    is_settled = is_judged and not run.has_news and run.mismatch_since is None and run.bad_end_since is None
    is_known = bool(run.ranks) and is_settled  # after a restart, it may be that no rank has been heard yet
    if quiet > timeline.ENDED_SECONDS and is_known and all(state.ended is not None for state in run.ranks.values()):
        is_over = has_ended(run) and not _were_stopped(run, accused)
        return Resolution.ENDED if is_over or quiet > timeline.STOPPED_SECONDS else None
    return Resolution.UNHEARD if quiet > timeline.UNHEARD_SECONDS else None


def lacking(run: Run, accused: Iterable[int], later: Iterable[Run]) -> Run | None:
    """The newest later run of the attempt, if it lacks ranks, and lacks a process that the run's incidents accuse; else
    None. Processes may have other ranks in the newer run.
    """
    own = [one for one in later if one.id.attempt == run.id.attempt]
    newest = max(own, key=lambda one: one.first_seen, default=None)
    if newest is None or len(newest.ranks) >= (newest.world_size or 0):
        return None
    here = {state.place.process for state in newest.ranks.values()}
    known = [run.ranks.get(rank) for rank in accused]
    return newest if any(one is None or one.place.process not in here for one in known) else None


def has_gone_on(run: Run, accused: Mapping[int, float], later: Iterable[Run]) -> bool:
    """Whether the job continues without the accused: all other live processes of the run are in a later run.

    If an accused rank comes back then, it finds no peers. This is not their fault.
    """
    newer = {
        state.place.process
        for other in later
        for state in other.ranks.values()
        if state.report is not None and state.place.pid is not None
    }
    if not newer:
        return False
    others = [state for rank, state in run.ranks.items() if rank not in accused]
    gone_on = [state for state in others if state.place.process in newer]
    return bool(gone_on) and all(state.ended is not None or state.place.process in newer for state in others)


def has_grown(run: Run, accused: Mapping[int, float], later: Iterable[Run]) -> bool:
    """Whether nodes have joined the job: a later run has more ranks, on all hosts, and the accused were only stopped.

    When nodes join, torchrun's own rendezvous ends all ranks, without giving a reason.
    """
    larger = [one for one in later if (one.world_size or 0) > len(run.ranks)]
    if not larger or not has_ended(run) or not _were_stopped(run, accused):
        return False
    hosts = _hosts(run)
    return "" not in hosts and any(hosts <= _hosts(one) for one in larger)


def _were_stopped(run: Run, accused: Mapping[int, float]) -> bool:
    """Whether all accused ranks were stopped from outside, and were accused only after that."""
    known = [(run.ranks[rank], at) for rank, at in accused.items() if rank in run.ranks]
    return len(known) == len(accused) > 0 and all(
        state.ended is not None and state.ended <= at and was_stopped_from_outside(state) for state, at in known
    )


def _hosts(run: Run) -> set[str]:
    return {state.place.machine for state in run.ranks.values()}
