"""Long work on the event loop. Each turn of the loop does one piece of one long work, however many there are.

A short request of another client needs several turns. Many long requests at once must not make each turn longer.
"""

from __future__ import annotations

import asyncio
import time

SECONDS = 0.01
"""Seconds of work after which other tasks run."""


class Turns:
    """The turns that all long work of a collector shares."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Let other tasks run, and first the long work that has waited longer."""
        async with self._lock:
            await asyncio.sleep(0)

    def begin(self) -> Work:
        """Begin work that may be long. It runs for `SECONDS` before it first waits."""
        return Work(self)


class Work:
    """Work that may be long."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._until = time.perf_counter() + SECONDS

    @property
    def is_over(self) -> bool:
        """Whether other tasks have not run for `SECONDS`."""
        return time.perf_counter() > self._until

    async def next(self) -> None:
        """Wait for the next turn if this one `is_over`."""
        if self.is_over:
            await self._turns.wait()
            self._until = time.perf_counter() + SECONDS
