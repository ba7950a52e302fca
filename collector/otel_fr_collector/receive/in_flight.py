"""The requests in flight: their number and bytes by owner, and whose requests end when there are too many."""

from __future__ import annotations

from typing import Protocol

from otel_fr_collector.shares import Holdings, Owner


class Request(Protocol):
    """A request in flight.

    Attributes:
        owner: the tenant of its token, and the client's address in place of a job.
        size: bytes of the request that are kept.
    """

    owner: Owner
    size: int

    def give_way(self) -> bool:
        """End the request and free its bytes to make room for another owner. Return False if it cannot be ended."""
        ...


class InFlight:
    """Bounds the requests in flight, and shares the room among their owners.

    A request that still arrives, or waits for its turn, can be ended to make room. So a tenant, or an address of a
    tenant, that sends many incomplete requests does not keep out other clients' requests.

    Args:
        max_requests, max_bytes: limits for all owners together.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._counts, self._sizes = Holdings(), Holdings()
        self._waiting: dict[Owner, dict[Request, None]] = {}
        self._held: set[Request] = set()
        self.count = self.size = 0

    def add(self, request: Request) -> bool:
        """Count a request that begins to arrive. Return False if there is no room and none can be made."""
        if self.count >= self._max_requests and not self._made_room(self._counts, request.owner, 1):
            return False
        self.count += 1
        self._counts.add(request.owner)
        self._waiting.setdefault(request.owner, {})[request] = None
        self._held.add(request)
        return True

    def grow(self, request: Request, size: int) -> bool:
        """Count more bytes of a request. Return False like `add`. The only request in flight always has room."""
        while self.size + size > self._max_bytes and self.size > request.size:
            if not self._made_room(self._sizes, request.owner, size):
                return False
        self.size += size
        self._sizes.add(request.owner, size)
        return True

    def shrink(self, request: Request) -> None:
        """Stop counting the request's bytes."""
        self.size -= request.size
        self._sizes.add(request.owner, -request.size)

    def settle(self, request: Request) -> None:
        """Note that the request's turn has come: from now on it is not ended to make room."""
        own = self._waiting.get(request.owner)
        if own is not None:
            own.pop(request, None)
            if not own:
                del self._waiting[request.owner]

    def remove(self, request: Request) -> None:
        """Remove a request that has ended. It may have been removed before."""
        self.settle(request)
        if request in self._held:
            self._held.remove(request)
            self.count -= 1
            self._counts.add(request.owner, -1)

    def _made_room(self, holdings: Holdings, newcomer: Owner, size: int) -> bool:
        """End the oldest request of the largest owner, if that owner has more than the newcomer would have."""
        loser = holdings.gives_way(newcomer, size)
        waiting = () if loser is None else self._waiting.get(loser, ())
        return any(request.give_way() for request in waiting)
