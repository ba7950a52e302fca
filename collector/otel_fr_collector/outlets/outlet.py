"""What every outlet is, and the links that outlets show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.shares import Owner


class Outlet:
    """Publishes every change of every incident to one kind of receiver. No method waits for the receiver.

    What an outlet does not override, it has no need of.

    Attributes:
        name: in logs and metrics; without secrets.
    """

    name: str

    def start(self) -> None:
        """Start publishing; called in a running event loop."""

    def publish(self, change: IncidentChange) -> None:
        raise NotImplementedError

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Restore incidents known from before a restart, or published by another collector before, oldest first.

        Called before `start`, and, where collectors share a database, later.
        """

    def forget(self, run: RunId) -> None:
        """Another collector publishes the run's incidents from now on; nothing is published about that."""

    async def stop(self, seconds: float) -> None:
        """Deliver what is still pending, within ``seconds`` seconds."""


TenantOf = Callable[[str], str]
"""The tenant of a job's name (`otel_fr_collector.network.tokens.tenant_of`)."""


def owner_of(incident: Incident, tenant_of: TenantOf) -> Owner:
    """Whose the deliveries about an incident are."""
    return Owner(tenant_of(incident.run.job), incident.run.job)


def links_of(links: Links, incident: Incident, wall: float) -> dict[str, str]:
    """An incident's links; ``wall``: Unix time now."""
    ended = wall if incident.resolved is None else incident.resolved
    return links.of(incident.data, incident.started or incident.detected, ended)
