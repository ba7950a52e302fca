"""Finds where stragglers are: asks their monitors for stacks a few times, because one stack shows only one moment."""

from __future__ import annotations

from dataclasses import dataclass

from otel_fr_collector.control import Control
from otel_fr_collector.incidents.incident import ChangeKind, IncidentChange
from otel_fr_collector.jobs.ranks import LOOKS
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs

LOOK_SECONDS = 1.37
"""Seconds between two requests: not in step with training steps."""
MAX_ASKED = 2 * LOOKS
"""Requests for one rank's stacks: an answer may be lost."""
MAX_RANKS = 8
"""Ranks of one incident whose stacks are requested."""


@dataclass(slots=True)
class _Asked:
    count: int = 0
    next_at: float = float("-inf")


class SlowLooks:
    """Requests stacks of the culprits of each open straggler incident. Times are monotonic."""

    def __init__(self, runs: Runs, control: Control) -> None:
        self._runs = runs
        self._control = control
        self._asked: dict[tuple[RunId, str], dict[int, _Asked]] = {}
        """By run and incident."""

    def note(self, change: IncidentChange) -> None:
        """Take note of an incident's change."""
        finding, run_id = change.incident.finding, change.incident.run
        key = run_id, change.incident.id
        if not finding.is_slowness:
            return
        if change.kind is ChangeKind.RESOLVED:
            self._asked.pop(key, None)
            return
        run, asked = self._runs.by_id.get(run_id), self._asked.setdefault(key, {})
        for rank in finding.culprit_ranks[:MAX_RANKS] if run is not None else ():
            if rank not in asked and run is not None and rank in run.ranks:
                asked[rank] = _Asked()
                run.ranks[rank].looks = ()

    def step(self, now: float) -> None:
        """Send the requests that are due."""
        for (run_id, incident), asked in list(self._asked.items()):
            run = self._runs.by_id.get(run_id)
            if run is None:
                del self._asked[run_id, incident]
                continue
            due = [  # a run that was dropped and has begun anew may lack ranks
                rank
                for rank, one in asked.items()
                if one.count < MAX_ASKED and one.next_at <= now and rank in run.ranks
                if len(run.ranks[rank].looks) < LOOKS
            ]
            for rank in due:
                asked[rank] = _Asked(asked[rank].count + 1, now + LOOK_SECONDS)
            if due:
                self._control.take_stacks(run_id, frozenset(due))
