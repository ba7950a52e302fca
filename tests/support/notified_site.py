"""A collector that notifies people only of waits that last for some time, and these notifications."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.outlets.outlet import Outlet

from tests.support.times import VirtualTime
from tests.support.virtual_collector import VirtualCollector

HOLD = 30.0


class Receiver(Outlet):
    """Stands for Alertmanager, a webhook and Grafana. Keeps kind and category of each change that reaches it."""

    name = "receiver"

    def __init__(self, collector_time: VirtualTime) -> None:
        self.told: list[tuple[str, str]] = []
        self.resumed: list[str] = []
        self.told_at: list[float] = []
        self._time = collector_time

    def publish(self, change: IncidentChange) -> None:
        self.told.append((change.kind.value, change.data["category"]))
        self.told_at.append(self._time.monotonic())

    def resume(self, incidents: Sequence[Incident]) -> None:
        self.resumed += [one.state for one in incidents]


class Site:
    """A collector that notifies people after `HOLD`, and their notifications."""

    def __init__(self, on: VirtualTime | None = None, **options: object) -> None:
        self.time = on or VirtualTime()
        self.receiver = Receiver(self.time)
        self.collector = VirtualCollector(
            self.time,
            outlets=lambda _, __: [self.receiver],
            alert_after=HOLD,
            **options,  # type: ignore[arg-type]
        )

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.collector.api("jobs")["jobs"]
        return found

    def alerting(self) -> float:
        return self.collector.metric("otel_fr_incidents_alerting")
