"""Selects the traces of incidents if not all traces are forwarded."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable

from otel_fr_collector.otlp import partial

HOLD_SECONDS = 60.0
"""Seconds for which a request is kept in case an incident is detected in its traces. This is longer than the default
stall time."""
HOLD_BYTES = 64 * 1024 * 1024
MAX_TRACES = 10_000
"""Traces of incidents that are known at the same time."""


class Selection:
    """Sees each trace request once, and selects the part that is forwarded.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marked: dict[bytes, None] = {}
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0

    def take(self, data: bytes) -> Callable[[], bytes]:
        """Keep a request for `HOLD_SECONDS`, so that the rest of its spans can be forwarded later.

        Returns:
            a function that selects the part that is forwarded now (empty: none). A thread may call it: the spans of a
            trace that is marked meanwhile belong to the rest.
        """
        now = self._clock()
        self._held.append((now, data))
        self._held_bytes += len(data)
        while self._held and (self._held_bytes > HOLD_BYTES or self._held[0][0] < now - HOLD_SECONDS):
            self._held_bytes -= len(self._held.popleft()[1])
        return functools.partial(partial.select_traces, data, self._marked.__contains__)

    def mark(self, trace: bytes) -> list[bytes]:
        """Mark the trace of an incident. From now on its spans are forwarded.

        Returns:
            The kept requests. Their spans of the trace must now be forwarded, too (`parts_of`).
        """
        if trace in self._marked:
            return []
        self._marked = dict.fromkeys([*self._marked, trace][-MAX_TRACES:])  # a copy: `take` has given away the old one
        return [data for _, data in self._held]


def parts_of(trace: bytes, requests: Iterable[bytes]) -> list[bytes]:
    """The parts of requests that belong to a trace."""
    found = [partial.select_traces(data, trace.__eq__) for data in requests if trace in data]
    return [data for data in found if data]
