"""Decides who gives way when something bounded is full, so that no job and no tenant takes all of it.

The shares are not fixed: whoever has the most gives way to whoever has less, first among the tenants, then among the
jobs of one tenant. So all of the room can be used, and a thousand jobs of one tenant leave room for another tenant's
job.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

_K = TypeVar("_K", bound=Hashable)


class Owner(NamedTuple):
    """The tenant (`otel_fr_collector.network.tokens.tenant_of`) and job to which something belongs.

    For requests, ``tenant`` is the token's job prefix, and ``job`` is the client's address.
    """

    tenant: str
    job: str


class _Ranking(Generic[_K]):
    """Amounts by key, and which key has the most. Of keys with equal amounts, the newest counts.

    Amounts change with each request, but are compared only when something is full. So the heap gets the latest amounts
    when `largest` is called. Outdated entries stay in it until they reach the top.
    """

    def __init__(self) -> None:
        self.amounts: dict[_K, int] = {}
        self._arrived: dict[_K, int] = {}
        self._heap: list[tuple[int, int, _K]] = []
        self._changed: set[_K] = set()
        """Keys whose amounts are not in the heap."""
        self._numbers = count()

    def add(self, key: _K, more: int) -> None:
        amount = self.amounts.get(key, 0) + more
        if amount <= 0:
            self.amounts.pop(key, None)
            self._arrived.pop(key, None)
            self._changed.discard(key)
            return
        if key not in self._arrived:
            self._arrived[key] = next(self._numbers)
        self.amounts[key] = amount
        self._changed.add(key)

    def largest(self) -> _K | None:
        amounts = self.amounts
        for key in self._changed:
            heapq.heappush(self._heap, (-amounts[key], -self._arrived[key], key))
        self._changed.clear()
        if len(self._heap) > 4 * len(amounts) + 64:
            self._heap = [(-held, -self._arrived[one], one) for one, held in amounts.items()]
            heapq.heapify(self._heap)
        heap = self._heap
        while heap:
            if amounts.get(heap[0][2]) == -heap[0][0]:
                return heap[0][2]
            heapq.heappop(heap)
        return None


class Holdings:
    """How much each owner has of something that is bounded, and who gives way when it is full.

    Each method takes logarithmic time, so that a flood of owners does not block the event loop.
    """

    def __init__(self) -> None:
        self._tenants: _Ranking[str] = _Ranking()
        self._jobs: dict[str, _Ranking[Owner]] = {}

    def add(self, owner: Owner, more: int = 1) -> None:
        """Add to the amount of an owner; a negative number is subtracted."""
        self._tenants.add(owner.tenant, more)
        own = self._jobs.get(owner.tenant)
        if own is None:
            own = self._jobs[owner.tenant] = _Ranking()
        own.add(owner, more)
        if not own.amounts:
            del self._jobs[owner.tenant]

    def largest_tenant(self, newcomer: Owner, size: int = 1) -> str:
        """The tenant that gives way: the tenant with the most, or the newcomer's if it would then have as much."""
        tenants, largest = self._tenants.amounts, self._tenants.largest()
        if largest is None or tenants.get(newcomer.tenant, 0) + size >= tenants[largest]:
            return newcomer.tenant
        return largest

    def gives_way(self, newcomer: Owner, size: int = 1) -> Owner | None:
        """The owner that must give up an entry so that ``newcomer`` gets one of ``size``.

        None: nobody, because the newcomer would then have as much as the owner with the most. So two owners with equal
        amounts never take turns in losing entries.
        """
        largest = self.largest_tenant(newcomer, size)
        own = self._jobs.get(largest)
        loser = None if own is None else own.largest()
        if own is None or loser is None:
            return None
        if largest == newcomer.tenant and own.amounts.get(newcomer, 0) + size >= own.amounts[loser]:
            return None
        return loser


class Owned(Protocol):
    """An item of a `FairQueue`. ``size``: bytes."""

    @property
    def owner(self) -> Owner: ...

    @property
    def size(self) -> int: ...


_Owned = TypeVar("_Owned", bound=Owned)


class FairQueue(Generic[_Owned]):
    """A queue that serves tenants in turn, and the items of each job in order.

    Args:
        limit: most items.
        max_bytes: most bytes of all items together.
    """

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._by_tenant: dict[str, dict[int, _Owned]] = {}
        self._by_owner: dict[Owner, dict[int, _Owned]] = {}
        """Items of each owner by number, in order."""
        self._counts, self._sizes = Holdings(), Holdings()
        self._numbers = count()
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: _Owned) -> list[Owner]:
        """Add an item.

        Returns:
            the owner of each item that was dropped because the queue was full. It is the owner's oldest item, or
            ``item`` itself if its owner has no other.
        """
        losers: list[Owner] = []
        while (is_long := self._count >= self._limit) or self._bytes + item.size > self._max_bytes:
            gives_way = self._counts.gives_way(item.owner) if is_long else self._sizes.gives_way(item.owner, item.size)
            loser = gives_way or item.owner
            losers.append(loser)
            own = self._by_owner.get(loser)
            if own is None:
                return losers
            self._remove(next(iter(own)), loser)
        self._add(item)
        return losers

    def discard(self, owner: Owner, is_old: Callable[[_Owned], bool]) -> None:
        """Remove the owner's items for which ``is_old`` is true."""
        for number in [number for number, item in self._by_owner.get(owner, {}).items() if is_old(item)]:
            self._remove(number, owner)

    def put_back(self, item: _Owned) -> None:
        """Put back an item that was taken. It is again the first of its owner.

        Its owner's turn comes after all other jobs of the tenant, and its tenant's turn after all other tenants.
        """
        owner = item.owner
        others, own = self._by_tenant.pop(owner.tenant, {}), self._by_owner.pop(owner, {})
        self._by_tenant[owner.tenant] = {number: one for number, one in others.items() if one.owner != owner}
        self._add(item)
        self._by_tenant[owner.tenant].update(own)
        self._by_owner[owner].update(own)

    def take(self) -> _Owned:
        """Remove and return the oldest item of the tenant whose turn it is.

        Raises:
            StopIteration: the queue is empty.
        """
        tenant = next(iter(self._by_tenant))
        number, item = next(iter(self._by_tenant[tenant].items()))
        self._remove(number, item.owner)
        rest = self._by_tenant.pop(tenant, None)
        if rest is not None:
            self._by_tenant[tenant] = rest
        return item

    def _add(self, item: _Owned) -> None:
        number = next(self._numbers)
        self._by_tenant.setdefault(item.owner.tenant, {})[number] = item
        self._by_owner.setdefault(item.owner, {})[number] = item
        self._note(item, 1)

    def _remove(self, number: int, owner: Owner) -> None:
        of_tenant, of_owner = self._by_tenant[owner.tenant], self._by_owner[owner]
        del of_tenant[number]
        item = of_owner.pop(number)
        if not of_tenant:
            del self._by_tenant[owner.tenant]
        if not of_owner:
            del self._by_owner[owner]
        self._note(item, -1)

    def _note(self, item: _Owned, sign: int) -> None:
        self._count += sign
        self._bytes += sign * item.size
        self._counts.add(item.owner, sign)
        self._sizes.add(item.owner, sign * item.size)
