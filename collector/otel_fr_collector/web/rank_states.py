"""The states of a run's ranks. The functions yield to the event loop now and then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container
from typing import NamedTuple

from otel_fr.api_answers import RankStateName
from otel_fr.match import Ending
from otel_fr_collector import timeline
from otel_fr_collector.jobs import stops
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run

CHUNK = 4_096
"""Ranks that are processed before the event loop runs other tasks. They take some milliseconds."""
ENDINGS: dict[Ending, RankStateName] = {Ending.CLEAN: "ended", Ending.RAISED: "raised", Ending.KILLED: "killed"}
_BY_FAULT = (Ending.RAISED, Ending.KILLED)


class NotRunning(NamedTuple):
    """The states of ranks that have sent something and do not run, and whether the job was stopped from outside."""

    states: dict[int, RankStateName]
    is_stopped: bool


async def not_running(run: Run, now: float, dead: Container[int]) -> NotRunning:
    """The ranks that do not run at the monotonic time ``now``. Yields to the event loop every `CHUNK` ranks.

    Args:
        dead: as in `stops.is_stopped`.
    """
    found: dict[int, RankStateName] = {}
    (floor, behind), running = run.unheard(now), Ending.RUNNING
    for count, state in enumerate(list(run.ranks.values()), 1):
        if count % CHUNK == 0:
            await asyncio.sleep(0)
        report = state.report
        is_heard = report is not None and now - state.arrived <= report.interval_s + timeline.GRACE
        if is_heard and state.ended is None and state.ending is running:
            continue  # the usual case: calling a function for each of 100,000 ranks would take twice as long
        name = _state_of(state, now, floor, behind, dead)
        if name != "running":
            found[state.rank] = name
    is_stopped = len(found) == len(run.ranks) and not run.ended_clean and stops.is_stopped(run, now, dead)
    if is_stopped:
        found = {rank: _of_stopped(name) for rank, name in found.items()}
    return NotRunning(found, is_stopped)


def _state_of(state: RankState, now: float, floor: float, behind: float, dead: Container[int]) -> RankStateName:
    """The state of one rank. The arguments are those of `RankState.is_silent` and `stops.is_stopped`."""
    if state.ended is not None or state.ending in _BY_FAULT:
        name = ENDINGS.get(state.ending, "gone")
        is_stop = state.ending in _BY_FAULT and state.rank not in dead and stops.was_stopped_from_outside(state)
        return _of_stopped(name) if is_stop else name
    if state.report is None:
        return "unheard"
    return "silent" if state.is_silent(now, floor, behind) else "running"


def _of_stopped(name: RankStateName) -> RankStateName:
    """The state of a rank in a stopped job. Whoever stops a job also kills the ranks that do not react."""
    return "stopped" if name in ("raised", "killed") else name


def tally_of(run: Run, states: dict[int, RankStateName]) -> dict[str, int]:
    """Count the ranks in each state, also ranks that have sent nothing. ``states``: of the ranks that do not run."""
    running, missing = len(run.ranks) - len(states), (run.world_size or 0) - len(run.ranks)
    tally = Counter[str]({"running": running} if running > 0 else {})
    tally.update(states.values())
    if missing > 0:
        tally["unheard"] += missing
    return dict(tally)
