"""What happens now, for all who listen (the page, ``otel-fr incidents --follow``): bounded, never waited for."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from otel_fr_collector.incidents import Told

MAX_LISTENERS = 256
MAX_PENDING = 256
"""Events kept for one listener; one that reads too slowly is let go, and asks anew when it comes back."""


class TooManyListenersError(Exception):
    """No further listener can be served."""


class Event(NamedTuple):
    """``data``: JSON text."""

    name: str
    data: str


class Stream:
    """Who listens."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[Event | None]] = set()
        self._closed = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def incident(self, told: Told) -> None:
        """An incident has changed."""
        if self._listeners:
            self.send(Event("incident", json.dumps({"change": told.change.value, "incident": told.data})))

    def send(self, event: Event) -> None:
        for queue in list(self._listeners):
            if queue.full():
                self._listeners.discard(queue)
                _end(queue)
            else:
                queue.put_nowait(event)

    def close(self) -> None:
        """End all streams, and those to come."""
        self._closed = True
        for queue in self._listeners:
            _end(queue)
        self._listeners.clear()

    def join(self) -> asyncio.Queue[Event | None]:
        """A queue of the events from now on, to be given back to `leave`; None in it: this is the end.

        Raises:
            TooManyListenersError: there are `MAX_LISTENERS` already.
        """
        if len(self._listeners) >= MAX_LISTENERS:
            raise TooManyListenersError
        queue: asyncio.Queue[Event | None] = asyncio.Queue(MAX_PENDING)
        if self._closed:
            _end(queue)
        else:
            self._listeners.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[Event | None]) -> None:
        self._listeners.discard(queue)


def _end(queue: asyncio.Queue[Event | None]) -> None:
    while queue.full():
        queue.get_nowait()
    queue.put_nowait(None)
