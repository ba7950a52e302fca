"""Keeps incidents, within limits on their number and their bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from otel_fr.incident import CollectorIncidentData
from otel_fr.match import Category
from otel_fr_collector import timeline
from otel_fr_collector.incidents.bounds import MAX_FILES, SCARCE, size_of
from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.network.tokens import tenant_of
from otel_fr_collector.shares import Holdings, Owner
from otel_fr_collector.throttle import Throttle

MAX_INCIDENTS = 1_000
"""Incidents kept for the API, over all runs. Beyond it, resolved ones are dropped, the oldest first. If all are open,
the owner with the most gives way (`otel_fr_collector.shares`)."""
MAX_BYTES = 32 << 20
"""Bytes of all incidents together. Beyond it, resolved ones are dropped. If open ones alone take more than half of it,
further texts are cut short (`otel_fr_collector.incidents.bounds`)."""


class KeptIncidents:
    """The incidents of all runs, with indexes to look them up.

    Args:
        wall: Unix time in seconds.
        tenant_of: the tenant of a job's name.
        alert_after: seconds that a wait which may end must last before people are notified.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        tenant_of: Callable[[str], str] = tenant_of,
        alert_after: float = 0.0,
    ) -> None:
        self._alert_after = alert_after
        self._log = Throttle()
        self._wall = wall
        self._tenant_of = tenant_of
        self._by_run: dict[RunId, list[Incident]] = {}
        self._all: dict[tuple[RunId, str], Incident] = {}
        self._runs_of: dict[str, set[RunId]] = {}
        """By id, the runs that have an incident with that id."""
        self._firing: dict[Owner, dict[tuple[RunId, str], Incident]] = {}
        self._held = Holdings()
        self._open_count = self._bytes = self._open_bytes = 0
        self._gave_way: set[RunId] = set()
        """Runs whose incident has given way to a job without one."""
        self.changed: dict[RunId, float] = {}
        """When a run's incidents last changed (monotonic)."""

    def restore(self, incidents: Iterable[Incident], now: float, wall: float) -> None:
        """Take the incidents from before a restart, oldest first, publishing nothing."""
        for incident in incidents:
            if (incident.run, incident.id) in self._all:
                continue
            incident.opened = now - max(0.0, wall - incident.detected)
            self._keep(incident)
            if incident.is_open:
                self._note_open(incident)
            self._weigh(incident)
        self._trim()

    def known(self) -> list[Incident]:
        """Every incident that is kept, oldest first."""
        return list(self._all.values())

    def get(self, number: str) -> CollectorIncidentData | None:
        """The incident with that id as it was last published."""
        return next((incident.data for incident in reversed(self._all.values()) if incident.id == number), None)

    def drop_old(self, before: float) -> None:
        """Drop incidents that were resolved before that Unix time."""
        for key, incident in list(self._all.items()):
            if not incident.is_open and incident.changed < before:
                self._drop(key)

    def open_of(self, run: RunId) -> list[Incident]:
        return [incident for incident in self._by_run.get(run, ()) if incident.is_open]

    def accused(self, run: RunId) -> dict[int, float]:
        """The culprits of the run's open incidents, and when each was first accused (monotonic)."""
        latest_first = sorted(self.open_of(run), key=lambda one: -one.opened)
        return {rank: one.opened for one in latest_first for rank in one.finding.culprit_ranks}

    def dead_ranks(self, run: RunId) -> set[int]:
        """The ranks whose end is a fault in an incident of the run, open or resolved."""
        found = [one.finding for one in self._by_run.get(run, ()) if one.finding.category is Category.RANK_DEAD]
        return {rank for finding in found for rank in finding.culprit_ranks}

    def has_any(self, run: RunId) -> bool:
        """Whether the run has had an incident."""
        return run in self._by_run

    def open_data(self) -> list[CollectorIncidentData]:
        return [incident.data for incident in self._all.values() if incident.is_open]

    def alerting_data(self, now: float) -> list[CollectorIncidentData]:
        """The incidents that people must know of at the monotonic time ``now``."""
        known = (one for one in self._all.values() if one.is_open or self._wall() < one.told_until)
        return [one.data for one in known if one.is_alerting(now)]

    def is_alerting(self, run: RunId, number: str, now: float) -> bool:
        """Whether people must know of the run's incident with that id at the monotonic time ``now``."""
        incident = self._all.get((run, number))
        return incident is not None and incident.is_alerting(now)

    def runs(self) -> list[RunId]:
        """The runs that have open incidents."""
        return list(dict.fromkeys(run for own in self._firing.values() for run, _ in own))

    def hand_over(self, run: RunId) -> None:
        """Drop the run's incidents without a change: another collector has them now."""
        for key, one in [(key, one) for key, one in self._all.items() if key[0] == run]:
            if one.is_open:
                self._note_resolved(one)
            self._drop(key)

    def drop_run(self, run: RunId) -> None:
        """Match no more findings with this run; its incidents stay in the list."""
        self._by_run.pop(run, None)
        self.changed.pop(run, None)
        self._gave_way.discard(run)

    @property
    def _is_scarce(self) -> bool:
        return self._open_bytes > MAX_BYTES // 2

    @property
    def _file_limit(self) -> int:
        return MAX_FILES // (SCARCE if self._is_scarce else 1)

    def _weigh(self, incident: Incident) -> None:
        """Update the bytes that an incident takes."""
        more = size_of(incident.finding, incident.files, incident.culprits) - incident.size
        more += 0 if incident.ras is None else sum(map(len, incident.ras.lines))
        incident.size += more
        self._bytes += more
        if incident.is_open:
            self._open_bytes += more

    def _own_moment(self, wall: float) -> float:
        """The first millisecond from a Unix time on in which no incident was detected.

        Lists are in this order, also after a restart, and are continued from a time in milliseconds.
        """
        taken = {int(one.detected * 1e3) for one in self._all.values()}
        while int(wall * 1e3) in taken:
            wall += 1e-3
        return wall

    def _owner(self, run: RunId) -> Owner:
        return Owner(self._tenant_of(run.job), run.job)

    def _keep(self, incident: Incident) -> None:
        self._by_run.setdefault(incident.run, []).append(incident)
        self._all[incident.run, incident.id] = incident
        self._runs_of.setdefault(incident.id, set()).add(incident.run)

    def _note_open(self, incident: Incident) -> None:
        incident.owner = self._owner(incident.run)
        self._firing.setdefault(incident.owner, {})[incident.run, incident.id] = incident
        self._held.add(incident.owner)
        self._open_count += 1
        self._open_bytes += incident.size

    def _note_resolved(self, incident: Incident) -> None:
        own = self._firing[incident.owner]
        del own[incident.run, incident.id]
        if not own:
            del self._firing[incident.owner]
        self._held.add(incident.owner, -1)
        self._open_count -= 1
        self._open_bytes -= incident.size

    def _gives_way(self, newcomer: RunId, now: float) -> Incident | None:
        """The open incident that gives way to a new one of that run; None: the new one is dropped.

        If each job has one incident, the one that opened first gives way to a job that has none. A run whose incident
        has given way takes nobody else's room, so that two jobs never take turns.
        """
        owner = self._owner(newcomer)
        loser = self._held.gives_way(owner)
        if loser is not None:
            return next(reversed(self._firing[loser].values()))
        if owner in self._firing or newcomer in self._gave_way:
            return None
        equals = [own for one, own in self._firing.items() if one.tenant == owner.tenant] or self._firing.values()
        oldest = min((one for own in equals for one in own.values()), key=lambda one: one.opened, default=None)
        if oldest is None or now - oldest.opened < timeline.TOLD_SECONDS:
            return None
        self._gave_way.add(oldest.run)
        return oldest

    def _trim(self) -> None:
        while len(self._all) > MAX_INCIDENTS or self._bytes > MAX_BYTES:
            over = next((key for key, incident in self._all.items() if not incident.is_open), None)
            if over is None:  # the store was readable only later, and has added incidents: these stay until they end
                return
            self._drop(over)

    def _drop(self, key: tuple[RunId, str]) -> None:
        gone = self._all.pop(key)
        self._bytes -= gone.size
        runs = self._runs_of[gone.id]
        runs.discard(gone.run)
        if not runs:
            del self._runs_of[gone.id]
        own = self._by_run.get(gone.run, [])
        if gone in own:
            own.remove(gone)
        if not own:
            self._by_run.pop(gone.run, None)
            self.changed.pop(gone.run, None)
