"""The collector's service without ports, on a clock that tests advance."""

from __future__ import annotations

from typing import Any

from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets.outlet import Outlet
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service


class Clock:
    """``now``: monotonic; ``wall``: Unix time."""

    def __init__(self, now: float = 100.0) -> None:
        self.now, self.wall = now, 1.7e9

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


def new_service(clock: Clock | None = None, *outlets: Outlet, metrics: Metrics | None = None, **more: Any) -> Service:
    """Return a service. ``clock``: None: the machine's clocks."""
    metrics = metrics or Metrics()
    if clock is not None:
        more |= {"clock": lambda: clock.now, "wall": lambda: clock.wall}
    return Service(metrics, Outlets(metrics, others=list(outlets)), **more)


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """Return the value of a metric; 0 if it is not served."""
    return metrics.registry.get_sample_value(name, labels) or 0.0


def internal_errors(metrics: Metrics) -> float:
    """Return the number of internal errors of all parts."""
    return sum(
        one.value for family in metrics.errors.collect() for one in family.samples if one.name.endswith("_total")
    )
