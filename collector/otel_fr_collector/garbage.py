"""Controls when Python's garbage collector runs: often over new objects, and seldom over all objects.

The state of jobs is in no reference cycle, so it is freed as soon as nothing refers to it. CPython does not know that,
and examines all objects once a quarter of them is new. This happens when all ranks of a large job begin to wait, and
each sends a new report. For a job of 16,384 ranks (268,000 objects), no thread runs for 0.2 s, once or twice before the
incident. Examined objects are therefore excluded from collection (`gc.freeze`) for some minutes.
"""

from __future__ import annotations

import gc

THRESHOLD = (5_000, 20, 10)
"""Calls come by the ten thousand and are in no reference cycle. Each gRPC request is in a cycle of 0.5 kB, but there
are few. The objects of a verdict, 150,000 for 16,384 ranks, are freed before the older generations are examined."""
NEW_SECONDS = 10.0
"""Seconds between two collections of new objects, which take some milliseconds."""
ALL_SECONDS = 600.0
"""Seconds between two collections of all objects. Until then, unused reference cycles that were frozen stay: 0.4 kB for
each request that was being served at a collection, and for each control stream."""


BUSY_SECONDS = 60.0
"""Most seconds between two collections while verdicts are due, now or soon. A collection would delay them."""


class GarbageCollection:
    """Takes control of the process's garbage collector. ``now``: monotonic, seconds."""

    def __init__(self, now: float) -> None:
        gc.set_threshold(*THRESHOLD)
        self._all_at = self._last = now
        self.step(now)

    def step(self, now: float, *, is_busy: bool = False) -> None:
        """Collect new objects, or every `ALL_SECONDS` all objects. If busy, do so only every `BUSY_SECONDS`."""
        if is_busy and now - self._last < BUSY_SECONDS:
            return
        self._last = now
        if now >= self._all_at:
            gc.unfreeze()
            self._all_at = now + ALL_SECONDS
        gc.collect()
        gc.freeze()
