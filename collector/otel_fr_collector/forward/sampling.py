"""Which traces are sent on when not all are: those of incidents, and a sample that is the same everywhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from otel_fr_collector.otlp import partial

HOLD_SECONDS = 60.0
"""How long a request is held in case an incident turns up in its traces: longer than any default stall time."""
HOLD_BYTES = 64 * 1024 * 1024
MAX_TRACES = 10_000
"""Traces of incidents that are remembered."""
_RANDOM_BITS = 56


class Selection:
    """Takes each trace request once and says what of it is to be sent on.

    A trace is in the sample if the last 56 bits of its id, as a number, are at or above ``(1 - ratio) * 2**56``
    (OpenTelemetry specification, "TraceState: Probability Sampling", and the Collector's probabilistic sampler in its
    proportional mode), so every collector and every rank chooses the same traces.

    Args:
        ratio: share of the trace ids in the sample, 0 to 1.
        clock: monotonic seconds.
    """

    def __init__(self, ratio: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._threshold = round((1 - ratio) * 2**_RANDOM_BITS)
        self._clock = clock
        self._marked: dict[bytes, None] = {}
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0

    def hold(self, data: bytes) -> None:
        """Keep a request for a while; the rest of its spans may be wanted later."""
        now = self._clock()
        self._held.append((now, data))
        self._held_bytes += len(data)
        while self._held and (self._held_bytes > HOLD_BYTES or self._held[0][0] < now - HOLD_SECONDS):
            self._held_bytes -= len(self._held.popleft()[1])

    def select(self, data: bytes) -> bytes:
        """What of a request is to be sent on now; empty bytes: nothing."""
        marked, threshold = self._marked, self._threshold

        def wanted(trace: bytes) -> bool:
            return int.from_bytes(trace[-7:], "big") >= threshold or trace in marked

        return partial.select_traces(data, wanted)

    def mark(self, trace: bytes) -> list[bytes]:
        """An incident shows in this trace: from now on its spans are sent on.

        Returns:
            what of the held requests is to be sent on as well.
        """
        if trace in self._marked or int.from_bytes(trace[-7:], "big") >= self._threshold:
            return []
        self._marked[trace] = None
        if len(self._marked) > MAX_TRACES:
            del self._marked[next(iter(self._marked))]
        found = [partial.select_traces(data, trace.__eq__) for _, data in self._held if trace in data]
        return [data for data in found if data]
