"""Long work on the event loop: each turn of the loop does one piece of all long work together.

A short request of another client needs several turns, so many long requests at once must not delay it.
"""

from __future__ import annotations

import asyncio
import time

SECONDS = 0.01
"""Seconds of work after which other tasks run."""


class Turns:
    """The turns of all long work of a collector."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Let other tasks run, and a piece of the long work that waited before."""
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
        """Whether other tasks last ran `SECONDS` ago or earlier."""
        return time.perf_counter() > self._until

    async def next(self) -> None:
        """Wait for the next turn if this one `is_over`."""
        if self.is_over:
            await self._turns.wait()
            self._until = time.perf_counter() + SECONDS
