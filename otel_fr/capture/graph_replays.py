"""Counts the replays of CUDA graphs that the program launches. Whether they have completed is not known: nothing on the
host shows that without waiting for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from otel_fr.capture.replaced import replace
from otel_fr.decision_names import GRAPH_REPLAYS, LAUNCHED
from otel_fr.fault_tolerance import decisions


def install(module: ModuleType) -> Callable[[], None]:
    """Count the calls of ``CUDAGraph.replay``. Touches no device, and loads nothing.

    Args:
        module: ``torch.cuda.graphs``.

    Returns:
        What undoes it.

    Raises:
        AttributeError: this torch has no such method.
    """
    original = module.CUDAGraph.replay

    @wraps(original)
    def replay(self: Any, *args: Any, **named: Any) -> Any:
        decisions.decided(GRAPH_REPLAYS, LAUNCHED, -1)  # never raises
        return original(self, *args, **named)

    return replace(module.CUDAGraph, "replay", replay)
