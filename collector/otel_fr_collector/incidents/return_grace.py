"""After a restart or an outage of the collector, ranks that do not report yet are not taken for silent.

They may still be reconnecting, and what they sent before says nothing about now. Ranks that are heard first may wait
for an answer until all others have been heard, so silence before that time does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from otel_fr_collector import timeline
from otel_fr_collector.jobs.run import Run, RunId

MAX_FIRST_REPORT_NUMBER = 3
"""If a run's first known report has at most this number, the run began after the collector's start."""


@dataclass(slots=True)
class _Outage:
    """A time in which nothing was heard of a run. The collector was cut off, rather than all ranks silent at once.

    Attributes:
        over: when a report came again (monotonic).
        ranks: ranks that were heard until the outage, and have not sent a report since it was over.
    """

    over: float
    ranks: set[int]


class ReturnGrace:
    """Runs that were running before the collector's start or through an outage. They are not judged until all their
    ranks have reported again.

    Args:
        started: monotonic time of the collector's start.
        may_judge: whether other collectors' incidents of a run are known, or no longer waited for.
        before: returns the run that a run's processes were in before (`Runs.before`).
    """

    def __init__(
        self,
        started: float,
        may_judge: Callable[[Run, float], bool] = lambda *_: True,
        before: Callable[[Run], Run | None] = lambda _: None,
    ) -> None:
        self._started = started
        self._may_judge = may_judge
        self._before = before
        self._until: dict[RunId, float | None] = {}
        """Monotonic time at which the wait ends; None: no rank of the run has reported yet."""
        self._checked: set[RunId] = set()
        self._outages: dict[RunId, _Outage] = {}

    def add(self, run: Run) -> None:
        """Wait for the ranks of a run that was running before the collector's start."""
        self._until[run.id] = None

    def waits_for(self, run: Run, now: float) -> bool:
        """Whether ranks of the run may still be reconnecting, or other collectors' incidents are still awaited."""
        if not self._may_judge(run, now):
            return True
        if self._is_after_outage(run, now):
            return True
        if run.id not in self._checked:
            self._check_age(run, now)
        if run.id not in self._until:
            return False
        until = self._until[run.id]
        if until is None:
            if all(rank.report is None for rank in run.ranks.values()):
                return True
            until = self._until[run.id] = now + timeline.RECONNECT_SECONDS
        if now >= until or self._are_back(run):
            del self._until[run.id]
            run.lags.floor = now
            return False
        return True

    def _are_back(self, run: Run) -> bool:
        """Whether all its ranks have reported, here or, if they have not come yet, in the run before."""
        own, before = run.ranks.values(), self._before(run)
        here = {state.place.process for state in own}
        there = () if before is None else before.ranks.values()
        behind = [s for s in there if s.report is not None and s.ended is None and s.place.process not in here]
        are_known = run.world_size is not None and len(own) + len(behind) >= run.world_size
        return are_known and all(state.report or state.ended is not None for state in own)

    def expire(self, now: float, known: Container[RunId]) -> None:
        """Stop waiting once every rank has had time to reconnect, and forget runs that are not ``known`` any more."""
        self._checked = {run for run in self._checked if run in known}
        self._until = {run: until for run, until in self._until.items() if run in known}
        self._outages = {run: outage for run, outage in self._outages.items() if run in known}
        if now - self._started > timeline.RETURN_SECONDS + timeline.RECONNECT_SECONDS:
            self._checked.clear()
            self._until.clear()

    def _is_after_outage(self, run: Run, now: float) -> bool:
        """Whether the run had an outage, and not all of its ranks have been heard again."""
        if run.lags.gap is not None:
            (began, over), run.lags.gap = run.lags.gap, None
            states = [state for state in run.ranks.values() if state.report is not None]
            live = [state for state in states if state.ended is None or state.ended >= over]  # until it was over
            if all(over - min(began, state.arrived) > state.silence for state in live):
                heard = {state.rank for state in live if began - state.arrived <= state.silence}
                known = self._outages.get(run.id)
                self._outages[run.id] = _Outage(over, heard if known is None else heard | known.ranks)
        outage = self._outages.get(run.id)
        if outage is None:
            return False
        missing = [run.ranks[rank] for rank in outage.ranks if rank in run.ranks]
        outage.ranks = {state.rank for state in missing if state.ended is None and state.sent < outage.over}
        if outage.ranks and now < outage.over + timeline.RECONNECT_SECONDS:
            return True
        del self._outages[run.id]
        run.lags.floor = now
        return False

    def _check_age(self, run: Run, now: float) -> None:
        """Find out whether a run was running before the collector's start."""
        if now - self._started > timeline.RETURN_SECONDS:
            return
        first = next((rank.report for rank in run.ranks.values() if rank.report is not None), None)
        if first is None:
            return
        self._checked.add(run.id)
        if first.number > MAX_FIRST_REPORT_NUMBER and run.id not in self._until:
            self._until[run.id] = None
