"""The live event stream for the page and ``otel-fr incidents --follow``. Its size is bounded, and it never waits for a
listener."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import NamedTuple

from otel_fr.incident import CollectorIncidentData
from otel_fr_collector.incidents.incident import ChangeKind, IncidentChange
from otel_fr_collector.network.tokens import Access

MAX_LISTENERS = 256
MAX_PENDING = 256
"""Events queued for one listener. A listener that reads too slowly is disconnected, and may connect again."""
MAX_PENDING_BYTES = 32 * 1024 * 1024
"""Characters of the events queued for one listener. A single queued event may be larger."""


class TooManyListenersError(Exception):
    """There are already `MAX_LISTENERS`, and none of them gives way to a new one."""


class Event(NamedTuple):
    """An event of the stream. ``data``: JSON text."""

    name: str
    data: str


class Listener:
    """One client of the stream.

    Attributes:
        access: which jobs the client may see.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(MAX_PENDING)
        self._size = 0

    async def next(self) -> Event | None:
        """Return the next event. None: the stream has ended."""
        event = await self._events.get()
        self._size -= 0 if event is None else len(event.data)
        return event

    def put(self, event: Event) -> bool:
        """Queue an event. Return False if there is no room."""
        if self._events.full() or (self._size and self._size + len(event.data) > MAX_PENDING_BYTES):
            return False
        self._size += len(event.data)
        self._events.put_nowait(event)
        return True

    def end(self) -> None:
        """End the stream after the queued events. If the queue is full, the oldest is dropped."""
        while self._events.full():
            self._events.get_nowait()
        self._events.put_nowait(None)


class EventStream:
    """All listeners."""

    def __init__(self) -> None:
        self._listeners: dict[Listener, None] = {}
        self._closed = False

    def accesses(self) -> set[Access]:
        """The accesses of the listeners."""
        return {listener.access for listener in self._listeners}

    def publish(self, change: IncidentChange) -> None:
        """Send an incident change to the listeners that may see its job."""
        self._tell(change.kind, change.data)

    def repeat(self, data: CollectorIncidentData) -> None:
        """Send an incident as another collector has published it."""
        begun = ChangeKind.UPDATED if data["revision"] > 1 else ChangeKind.OPENED
        self._tell(ChangeKind.RESOLVED if data["resolved_at"] else begun, data)

    def jobs(self, data: str, access: Access) -> None:
        """Send a changed list of jobs to the listeners with this access."""
        self._send(Event("jobs", data), [one for one in self._listeners if one.access == access])

    def close(self) -> None:
        """End all streams. Streams that begin later end at once."""
        self._closed = True
        for listener in self._listeners:
            listener.end()
        self._listeners.clear()

    def join(self, access: Access) -> Listener:
        """Add a listener. It receives all events until it is passed to `leave`.

        If there are `MAX_LISTENERS`, the access with the most listeners loses its newest listener.

        Raises:
            TooManyListenersError: this access would then have as many listeners as the largest, or more.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            held = Counter(one.access for one in self._listeners)
            largest, count = held.most_common(1)[0]
            if held[access] + 1 >= count:
                raise TooManyListenersError
            newest = next(one for one in reversed(self._listeners) if one.access == largest)
            self.end(newest)
        listener = Listener(access)
        if self._closed:
            listener.end()
        else:
            self._listeners[listener] = None
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def end(self, listener: Listener) -> None:
        """End the stream of one client."""
        self.leave(listener)
        listener.end()

    def _tell(self, kind: ChangeKind, data: CollectorIncidentData) -> None:
        if self._listeners:
            event = Event("incident", json.dumps({"change": kind.value, "incident": data}))
            self._send(event, [one for one in self._listeners if one.access.may_see(data["job"])])

    def _send(self, event: Event, listeners: list[Listener]) -> None:
        for listener in listeners:
            if not listener.put(event):
                self.end(listener)
