"""Incidents that people are not notified about yet, because the wait may end (`Incident.alert_after`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from otel_fr_collector.incidents.incident import ChangeKind, Incident, IncidentChange
from otel_fr_collector.incidents.kept import KeptIncidents
from otel_fr_collector.jobs.run import RunId


class Hold:
    """Holds incidents back until they have lasted long enough. An incident that ends earlier is never passed on.

    Times are monotonic.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[RunId, str], IncidentChange] = {}

    def take(self, change: IncidentChange, now: float) -> IncidentChange | None:
        """Return the change that receivers must learn now. None: there is none."""
        incident = change.incident
        key = incident.run, incident.id
        if change.kind is ChangeKind.OPENED or key in self._held:
            self._held.pop(key, None)
            if change.kind is ChangeKind.RESOLVED:
                return None
            change = dataclasses.replace(change, kind=ChangeKind.OPENED)
            if not incident.is_alerting(now):
                self._held[key] = change
                return None
        return change

    def due(self, now: float, book: KeptIncidents) -> list[IncidentChange]:
        """Return the openings of incidents that have now lasted long enough.

        Args:
            book: has the incidents as they are now. A wait that ends or comes back does not always make a change.
        """
        lasted = [key for key, change in self._held.items() if change.incident.is_alerting(now)]
        return [self._held.pop(key) for key in lasted if book.is_alerting(*key, now)]

    def resume(self, incidents: Iterable[Incident], now: float) -> list[Incident]:
        """Continue incidents from before a restart or of another collector. Return those known to receivers."""
        passed = []
        for incident in incidents:
            if incident.resolved is not None:
                if incident.resolved - incident.detected >= incident.alert_after:
                    passed.append(incident)
            elif incident.is_alerting(now):
                passed.append(incident)
            else:
                self._held[incident.run, incident.id] = IncidentChange(ChangeKind.OPENED, incident, incident.data)
        return passed

    def forget(self, run: RunId) -> None:
        """Drop a run's incidents, because another collector continues them."""
        for key in [key for key in self._held if key[0] == run]:
            del self._held[key]
