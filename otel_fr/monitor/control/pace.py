"""Bounds on what a collector can have a monitor do: a faulty or hostile one must not take the job's processors."""

from __future__ import annotations


class Pace:
    """A token bucket: so much at once, and so much a second.

    Args:
        rate: a second. burst: at once, and at the beginning. now: monotonic seconds.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, now

    def spend(self, amount: float, now: float) -> None:
        """Take from the bucket, which may then be less than empty. ``now``: monotonic seconds."""
        self._left = self._filled(now) - amount
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until it is not empty; 0: it is not."""
        return max(0.0, -self._filled(now) / self._rate)

    def _filled(self, now: float) -> float:
        return min(self._burst, self._left + (now - self._at) * self._rate)
