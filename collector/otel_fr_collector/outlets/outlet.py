"""The base class of outlets, and the links that outlets show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.incidents.links import Links
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.shares import Owner


class Outlet:
    """Publishes every change of every incident to one kind of receiver. No method except `stop` waits for the receiver.

    By default, all methods except `publish` do nothing.

    Attributes:
        name: the outlet's name in logs and metrics, without secrets.
    """

    name: str

    def start(self) -> None:
        """Start publishing. Called in a running event loop."""

    def publish(self, change: IncidentChange) -> None:
        raise NotImplementedError

    def resume(self, incidents: Sequence[Incident]) -> None:
        """Continue incidents from before a restart, or that another collector has published, oldest first.

        Called before `start`. If collectors share a database, also called later.
        """

    def forget(self, run: RunId) -> None:
        """Forget a run without publishing anything: another collector publishes its incidents from now on."""

    async def stop(self, seconds: float) -> None:
        """Deliver pending changes, within ``seconds`` seconds."""


TenantOf = Callable[[str], str]
"""Returns the tenant of a job, by the job's name (`otel_fr_collector.network.tokens.tenant_of`)."""


def owner_of(incident: Incident, tenant_of: TenantOf) -> Owner:
    """The owner of the deliveries about an incident."""
    return Owner(tenant_of(incident.run.job), incident.run.job)


def links_of(links: Links, incident: Incident, wall: float) -> dict[str, str]:
    """An incident's links; ``wall``: Unix time now."""
    ended = wall if incident.resolved is None else incident.resolved
    return links.of(incident.data, incident.started or incident.detected, ended)
