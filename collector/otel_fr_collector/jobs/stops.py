"""Whether a job was stopped from outside: by its user, or whoever ends its launcher (scancel, Ctrl-C, an eviction)."""

from __future__ import annotations

from signal import SIGKILL

from otel_fr.match import Ending, Rank
from otel_fr.match.facts import endings
from otel_fr.match.facts.endings import KILL_GRACE
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run


def was_stopped(state: RankState) -> bool:
    """As `otel_fr.match.facts.endings.was_stopped`."""
    return endings.was_stopped(
        Rank(
            state.rank,
            ending=state.ending,
            signal=state.signal,
            exit_code=state.exit_code,
            exception=state.exception,
            exit_message=state.exit_message,
            ended_by_monitor=_was_ended_by_monitor(state),
        )
    )


def is_stopped(run: Run, now: float) -> bool:
    """All ranks have ended, some were stopped, and none ended by a fault before that.

    A rank that does not react is killed after the others, maybe together with its monitor, so that it falls silent.
    """
    if run.world_size is None or len(run.ranks) < run.world_size:
        return False
    stops = [state.ended for state in run.ranks.values() if was_stopped(state) and state.ended is not None]
    if not stops or any(map(_was_ended_by_monitor, run.ranks.values())):
        return False
    behind = run.lateness(now)
    return all(_is_over(run, state, min(stops), now, behind) for state in run.ranks.values())


def _is_over(run: Run, state: RankState, stopped: float, now: float, behind: float) -> bool:
    if state.ended is None:
        return state.sent >= stopped and state.is_silent(now, run.silence_floor, behind)
    if state.ending is Ending.KILLED and state.signal == SIGKILL:
        return state.ended - stopped >= KILL_GRACE
    return state.ending is Ending.CLEAN or was_stopped(state)


def _was_ended_by_monitor(state: RankState) -> bool:
    return state.report is not None and state.report.on_hang == "kill"
