"""The outlets of one collector, in the order in which each incident change is published to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from otel_fr_collector.faults import Faults
from otel_fr_collector.incidents.incident import Incident, IncidentChange
from otel_fr_collector.incidents.kept import KeptIncidents
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.outlets.event_stream import EventStream
from otel_fr_collector.outlets.file import IncidentsFile
from otel_fr_collector.outlets.hold import Hold
from otel_fr_collector.outlets.outlet import Outlet
from otel_fr_collector.outlets.terminal import Terminal


@dataclass
class Outlets:
    """The terminal, the file and the event stream, and the other outlets, which must be started.

    An exception in one outlet is counted and logged. The other outlets are still notified.

    Attributes:
        file: the file of incidents. None: there is none.
        others: alerts, webhooks and the like. They learn of a wait that may end only once it has lasted (`Hold`).
        event_stream: clients join it through the API.
    """

    metrics: Metrics
    terminal: Terminal = field(default_factory=lambda: Terminal(None))
    file: IncidentsFile | None = None
    others: list[Outlet] = field(default_factory=list)
    event_stream: EventStream = field(init=False)
    _hold: Hold = field(default_factory=Hold, init=False)
    _faults: Faults = field(init=False)

    def __post_init__(self) -> None:
        self.event_stream = EventStream()
        self._faults = Faults(self.metrics)

    def start(self) -> None:
        """Start delivering. Needs a running event loop."""
        for outlet in self.others:
            outlet.start()

    def resume(self, incidents: Sequence[Incident], now: float) -> None:
        """Continue incidents from before a restart or of another collector, oldest first. ``now``: monotonic time."""
        incidents = self._hold.resume(incidents, now)
        for outlet in self.others:
            with self._caught(outlet.name):
                outlet.resume(incidents)

    def forget(self, run: RunId) -> None:
        """Another collector publishes the run's incidents from now on."""
        self.terminal.forget(run)
        self._hold.forget(run)
        for outlet in self.others:
            with self._caught(outlet.name):
                outlet.forget(run)

    def publish(self, change: IncidentChange, now: float, *, has_files: bool) -> None:
        """Publish one change, to the file first.

        Args:
            now: monotonic time.
            has_files: no further flight-recorder files are expected for the incident.
        """
        if self.file is not None:
            with self._caught("incidents file"):
                self.file.write(change.data)
        with self._caught("terminal"):
            self.terminal.publish(change, now, has_files=has_files)
        told = self._hold.take(change, now)
        if told is not None:
            self._tell(told)
        with self._caught("event stream"):
            self.event_stream.publish(change)

    def _tell(self, change: IncidentChange) -> None:
        for outlet in self.others:
            with self._caught(outlet.name):
                outlet.publish(change)

    def step(self, now: float, book: KeptIncidents, *, final: bool = False) -> None:
        """Print incidents that are due, and publish those that have lasted long enough.

        Args:
            now: monotonic time.
            book: has the incidents as they are now.
            final: the collector stops, so everything is printed and the event stream ends.
        """
        with self._caught("terminal"):
            self.terminal.step(now, final=final)
        for change in self._hold.due(now, book):
            self._tell(change)
        if final:
            self.event_stream.close()

    async def stop(self, seconds: float) -> None:
        """Deliver pending changes, within ``seconds`` seconds."""
        await asyncio.gather(*(self._stop(outlet, seconds) for outlet in self.others))
        if self.file is not None:
            self.file.close()

    async def _stop(self, outlet: Outlet, seconds: float) -> None:
        with self._caught(outlet.name):
            await outlet.stop(seconds)

    def _caught(self, outlet: str) -> contextlib.AbstractContextManager[None]:
        return self._faults.caught("publish", f"{outlet}: incident changes could not be published")
