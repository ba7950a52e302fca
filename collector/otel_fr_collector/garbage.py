"""When Python's garbage collector looks at what: at what is new, and seldom at all that the collector keeps.

What is kept of jobs is in no reference cycle, so it goes as soon as nothing refers to it. CPython, which does not know
that, looks at all objects once a quarter of them is new. So it does when all ranks of a large job begin to wait, and
each has a new report: 0.2 s of CPU for a job of 16,384 ranks (268,000 objects), in which no thread runs, once or twice
before the incident. What has been looked at is therefore left out of further looks (`gc.freeze`) for some minutes.
"""

from __future__ import annotations

import gc

THRESHOLD = (5_000, 20, 10)
"""Calls come by the ten thousand and are in no reference cycle; gRPC's requests are in one of 0.5 kB, but they are few.
What a verdict needs, 150,000 objects for 16,384 ranks, is gone before the older generations are looked at."""
NEW_SECONDS = 10.0
"""Between two looks at what is new: some milliseconds."""
ALL_SECONDS = 600.0
"""Between two looks at everything. Until then, what was in a reference cycle at a look before and is so no more in use
stays: 0.4 kB of each request that was being served at a look, and of each control stream."""


BUSY_SECONDS = 60.0
"""For which a look waits while verdicts are being reached, or soon will be, which it would hold up."""


class GarbageCollection:
    """The process's garbage collector, from now on. ``now``: monotonic, seconds."""

    def __init__(self, now: float) -> None:
        gc.set_threshold(*THRESHOLD)
        self._all_at = self._last = now
        self.step(now)

    def step(self, now: float, *, is_busy: bool = False) -> None:
        """Look at what is new, or at everything if that was `ALL_SECONDS` ago."""
        if is_busy and now - self._last < BUSY_SECONDS:
            return
        self._last = now
        if now >= self._all_at:
            gc.unfreeze()
            self._all_at = now + ALL_SECONDS
        gc.collect()
        gc.freeze()
