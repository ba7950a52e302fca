"""The live event stream for the page and ``otel-fr incidents --follow``. Bounded; no listener is waited for."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from otel_fr_collector.incidents.book import IncidentChange
from otel_fr_collector.network.tokens import Access

MAX_LISTENERS = 256
MAX_PENDING = 256
"""Events queued for one listener; one that reads too slowly is disconnected, and may connect again."""


class TooManyListenersError(Exception):
    """There are `MAX_LISTENERS` already."""


class Event(NamedTuple):
    """``data``: JSON text."""

    name: str
    data: str


class Listener:
    """One client of the stream.

    Attributes:
        access: what it may see.
        events: those queued for it; None: the stream ends.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.events: asyncio.Queue[Event | None] = asyncio.Queue(MAX_PENDING)


class EventStream:
    """All listeners."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._closed = False

    def accesses(self) -> set[Access]:
        """The accesses of the listeners."""
        return {listener.access for listener in self._listeners}

    def publish(self, change: IncidentChange) -> None:
        """Send an incident change to the listeners that may see its job."""
        if self._listeners:
            event = Event("incident", json.dumps({"change": change.kind.value, "incident": change.data}))
            self._send(event, [one for one in self._listeners if one.access.may_see(change.incident.run.job)])

    def jobs(self, data: str, access: Access) -> None:
        """Send a changed list of jobs to the listeners with this access."""
        self._send(Event("jobs", data), [one for one in self._listeners if one.access == access])

    def close(self) -> None:
        """End all streams; later ones end at once."""
        self._closed = True
        for listener in self._listeners:
            _end(listener)
        self._listeners.clear()

    def join(self, access: Access) -> Listener:
        """A listener that receives the events from now on, until it is passed to `leave`.

        Raises:
            TooManyListenersError: there are `MAX_LISTENERS` already.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            raise TooManyListenersError
        listener = Listener(access)
        if self._closed:
            _end(listener)
        else:
            self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def _send(self, event: Event, listeners: list[Listener]) -> None:
        for listener in listeners:
            if listener.events.full():
                self._listeners.discard(listener)
                _end(listener)
            else:
                listener.events.put_nowait(event)


def _end(listener: Listener) -> None:
    while listener.events.full():
        listener.events.get_nowait()
    listener.events.put_nowait(None)
