"""What a collector that has just started may not yet take for silence: jobs that were running before it."""

from __future__ import annotations

from otel_fr_collector.jobs.run import Run, RunId

PATIENCE = 30.0
"""Seconds from a run's first word for which its other ranks may be on their way back.

gRPC's clients wait between two attempts to connect: 1 s at first, 1.6 times as long each time (gRPC's connection
backoff). After an outage of 20 s the next attempt comes within about 10 s of the collector's return.
"""
YOUNG = 3
"""Number of a rank's report up to which its run counts as one that has begun while the collector listened."""
LIFE = 600.0
"""Seconds of the collector's life after which nobody comes back to it any more."""


class RestartGrace:
    """Which runs are being learnt anew. A fault is told of them once all their ranks have been heard again.

    Args:
        started: monotonic time of the collector's start.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._until: dict[RunId, float | None] = {}
        """When the patience ends; None: the run is expected, and not heard of yet."""
        self._known: set[RunId] = set()

    def expect(self, run: Run) -> None:
        """The run was there before the collector."""
        self._until[run.id] = None

    def waits_for(self, run: Run, now: float) -> bool:
        """Are ranks of the run still on their way back?"""
        if run.id not in self._known:
            self._look(run, now)
        if run.id not in self._until:
            return False
        until = self._until[run.id]
        reporting = [rank for rank in run.ranks.values() if rank.report is not None]
        if until is None:
            if not reporting:
                return True
            until = self._until[run.id] = now + PATIENCE
        back = sum(rank.report is not None or rank.ended is not None for rank in run.ranks.values())
        if now >= until or (run.world_size is not None and back >= run.world_size):
            del self._until[run.id]
            return False
        return True

    def step(self, now: float) -> None:
        """Let go of what is over."""
        if now - self._started > LIFE + PATIENCE:
            self._known.clear()
            self._until.clear()

    def _look(self, run: Run, now: float) -> None:
        """Was a run that is new to us running before we were?"""
        if now - self._started > LIFE:
            return
        first = next((rank.report for rank in run.ranks.values() if rank.report is not None), None)
        if first is None:
            return
        self._known.add(run.id)
        if first.number > YOUNG and run.id not in self._until:
            self._until[run.id] = None
