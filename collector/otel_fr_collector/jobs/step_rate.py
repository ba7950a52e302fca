"""How fast a run's training steps go by, from the step numbers in the reports of one rank."""

from __future__ import annotations

from collections import deque

from otel_fr_collector import timeline

WINDOW = 60.0
"""Seconds over which the rate is taken."""
EVERY = 2.0
"""Seconds between two samples, at least: ranks report each second."""
LEAST = 2.0
"""Seconds that samples must span before there is a rate."""


class StepRate:
    """Steps per second of one run; all ranks take the same steps, so one of them is followed."""

    __slots__ = ("_rank", "_samples", "_seen")

    def __init__(self) -> None:
        self._rank = -1
        self._seen = float("-inf")
        self._samples: deque[tuple[float, int]] = deque(maxlen=int(WINDOW / EVERY) + 1)

    def note(self, rank: int, step: int, now: float) -> None:
        """Take the number of a rank's current step. ``now``: monotonic."""
        if rank != self._rank:
            if now - self._seen <= timeline.STEPS_STALE:
                return
            self._rank = rank
            self._samples.clear()
        self._seen = now
        samples = self._samples
        if samples and step < samples[-1][1]:
            samples.clear()  # the program begins to count again
        if not samples or now - samples[-1][0] >= EVERY:
            samples.append((now, step))

    def per_second(self, now: float) -> float | None:
        """Steps per second; None: not known, or no step ended lately."""
        recent = [one for one in self._samples if now - one[0] <= WINDOW]
        if len(recent) < 2 or now - self._seen > timeline.STEPS_STALE:
            return None
        seconds, steps = recent[-1][0] - recent[0][0], recent[-1][1] - recent[0][1]
        return steps / seconds if steps > 0 and seconds >= LEAST else None
