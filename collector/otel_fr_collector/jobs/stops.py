"""Whether a job has ended, or was stopped from outside: by its user or its launcher (scancel, Ctrl-C, an eviction)."""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache

from otel_fr.communication_errors import tells_of_lost_peer
from otel_fr.match import Ending, Rank, window_of
from otel_fr.match.facts.ranks import may_be_cleared_away, was_stopped
from otel_fr.match.facts.stops import KILL_GRACE, were_killed_together
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run


def may_follow_a_stop(state: RankState) -> bool:
    """Whether the rank was stopped; or killed after it had not moved for long, maybe because it ignored a stop."""
    idle = 0.0 if state.report is None else state.report.idle_s or 0.0
    rank = end_of(state)
    return was_stopped(rank) or (idle >= KILL_GRACE and may_be_cleared_away(rank))


def was_stopped_from_outside(state: RankState) -> bool:
    """Whether a user or a launcher ended the rank. Its own monitor does not count: it ends only ranks at fault."""
    is_own = state.report is not None and state.report.on_hang == "kill"
    return not is_own and _tells_of_stop(
        state.ending, state.signal, state.exit_code, state.exception, state.exit_message
    )


@lru_cache(256)
def _tells_of_stop(
    ending: Ending, signal: int | None, exit_code: int | None, exception: str, exit_message: str
) -> bool:
    """Cached, because most ranks of a job end alike, and the page asks for all of them each second."""
    rank = Rank(0, ending=ending, signal=signal, exit_code=exit_code, exception=exception, exit_message=exit_message)
    return was_stopped(rank)


def has_ended(run: Run) -> bool:
    """Whether every rank of the world has ended, well or not."""
    return run.is_whole and all(state.ended is not None for state in run.ranks.values())


def is_stopped(run: Run, now: float, dead: Container[int] = ()) -> bool:
    """Whether all ranks have ended, some were stopped, and none failed before that; or all were killed at once.

    A rank that does not react is killed after the others, maybe together with its monitor. So a rank that has fallen
    silent after the first stop counts as ended.

    Args:
        dead: the ranks whose end the verdict names as a cause.
    """
    if run.world_size is None or not run.is_whole:
        return False
    ends = [(state.ended, end_of(state)) for state in run.ranks.values() if state.ended is not None]
    if were_killed_together([rank for _, rank in ends], run.world_size):
        return True
    stopped = [(ended, rank) for ended, rank in ends if was_stopped(rank)]
    if not stopped or any(rank.ended_by_monitor or rank.rank in dead for _, rank in stopped):
        return False
    first, (floor, behind) = min(ended for ended, _ in stopped), run.unheard(now)
    silent = [state for state in run.ranks.values() if state.ended is None]
    window = window_of(run.stall)
    return all(
        _is_over(rank, ended - first, dead) or (ended >= first and _lost_peer(run.ranks[rank.rank], window))
        for ended, rank in ends
    ) and all(state.sent >= first and state.is_silent(now, floor, behind) for state in silent)


def _is_over(rank: Rank, seconds: float, dead: Container[int]) -> bool:
    """Whether an end belongs to a stop of the job. ``seconds``: from the first stop to the rank's end."""
    if may_be_cleared_away(rank):
        return seconds >= KILL_GRACE or rank.rank not in dead
    return rank.ending is Ending.CLEAN or was_stopped(rank)


def _lost_peer(state: RankState, window: float) -> bool:
    """Whether the rank's call had lasted for the window when it raised because a peer had ended.

    A stop has this effect, because launchers stop one rank after the other.
    """
    lasted = [call.duration for call in state.contents.failed if call.duration is not None]
    return state.ending is Ending.RAISED and tells_of_lost_peer(state.exception) and max(lasted, default=0.0) >= window


def end_of(state: RankState) -> Rank:
    return Rank(
        state.rank,
        ending=state.ending,
        signal=state.signal,
        exit_code=state.exit_code,
        exception=state.exception,
        exit_message=state.exit_message,
        kill_reason=state.kill_reason,
        idle=None if state.report is None else state.report.idle_s,
        ended_by_monitor=state.report is not None and state.report.on_hang == "kill",
    )
