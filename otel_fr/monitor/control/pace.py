"""Limits on the work that a collector can request: a faulty or hostile collector must not take the job's processors."""

from __future__ import annotations

import threading
from collections import deque

from otel_fr.control.v1.control_pb2 import Command

MAX_WAITING, MAX_WAITING_BYTES = 256, 4 << 20
"""Most commands that wait to be carried out, and their bytes."""


class Pace:
    """A token bucket.

    Args:
        rate: amount added each second.
        burst: largest content. The bucket is full at the beginning.
        now: monotonic seconds.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = burst, now

    def spend(self, amount: float, now: float) -> None:
        """Take an amount from the bucket. Its content may become negative. ``now``: monotonic seconds."""
        self._left = self._filled(now) - amount
        self._at = now

    def wait(self, now: float) -> float:
        """Return the seconds until the content is no longer negative."""
        return max(0.0, -self._filled(now) / self._rate)

    def _filled(self, now: float) -> float:
        return min(self._burst, self._left + (now - self._at) * self._rate)


class Inbox:
    """Commands that wait to be carried out, at most `MAX_WAITING`. Thread safe.

    Attributes:
        lost: number of commands for which there was no room.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Command, int, str]] = deque()
        self._size = 0
        self._lock = threading.Lock()
        self.lost = 0

    def put(self, command: Command, size: int, run: str = "") -> None:
        """Add a command of ``size`` bytes for a rank of ``run``, or count it as lost."""
        with self._lock:
            if len(self._waiting) >= MAX_WAITING or self._size + size > MAX_WAITING_BYTES:
                self.lost += 1
                return
            self._waiting.append((command, size, run))
            self._size += size

    def take(self, run: str | None = None) -> Command | None:
        """Remove and return the oldest command for ``run`` (None: any run), or None. Drop older ones for other runs."""
        with self._lock:
            while self._waiting:
                command, size, of_run = self._waiting.popleft()
                self._size -= size
                if run in (None, of_run):
                    return command
            return None
