"""Counts the replays of CUDA graphs that the program launches. Whether a replay has completed is unknown: nothing on
the host shows it without waiting for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from otel_fr.decision_names import GRAPH_REPLAYS, LAUNCHED
from otel_fr.fault_tolerance import decisions


def counting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``CUDAGraph.replay`` that counts its calls. It uses no device, and imports nothing."""

    @wraps(original)
    def replay(self: Any, *args: Any, **named: Any) -> Any:
        decisions.decided(GRAPH_REPLAYS, LAUNCHED, -1)  # never raises
        return original(self, *args, **named)

    return replay
