"""Shares of what is bounded: who gives way when it is full, so that no job and no tenant takes all of it.

The shares are not fixed: whoever has the most gives way to whoever has less, first among the tenants, then among the
jobs of one tenant. So all of the room can be used, and a thousand jobs of one tenant leave room for the job of another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class Owner(NamedTuple):
    """Who an alert or a delivery is about. ``tenant``: see `otel_fr_collector.network.tokens.tenant_of`."""

    tenant: str
    job: str


def gives_way(held: Mapping[Owner, int], newcomer: Owner, size: int = 1) -> Owner | None:
    """Who loses an entry of what is full so that ``newcomer`` gets one.

    None: nobody, because the newcomer would then have more than whoever loses one; two that have the same never take
    turns in losing it.

    Args:
        held: how much each owner has. size: how much the newcomer is to get.
    """
    tenants: Counter[str] = Counter()
    for owner, count in held.items():
        tenants[owner.tenant] += count
    largest = max(tenants, key=lambda tenant: tenants[tenant], default=newcomer.tenant)
    if tenants[newcomer.tenant] + size >= tenants[largest]:
        largest = newcomer.tenant
    own = [owner for owner in held if owner.tenant == largest]
    loser = max(reversed(own), key=lambda owner: held[owner], default=newcomer)  # of equals, the one that came last
    if largest == newcomer.tenant and held.get(newcomer, 0) + size >= held.get(loser, 0):
        return None
    return loser


@dataclass(frozen=True, slots=True, eq=False)
class _Entry(Generic[_T]):
    owner: Owner
    item: _T
    size: int


class FairQueue(Generic[_T]):
    """A queue from which tenants are served in turn; what belongs to one tenant stays in order.

    Args:
        limit: items at most. max_bytes: of all items together.
    """

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._by_tenant: dict[str, deque[_Entry[_T]]] = {}
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: _T, owner: Owner, size: int, supersedes: Callable[[_T], bool]) -> list[Owner]:
        """Add an item of ``size`` bytes in place of those of its owner that it supersedes.

        Returns:
            whose oldest items were dropped because the queue was full. If it is full and its owner has no other item,
            the item itself is dropped.
        """
        for entry in [entry for entry in self._by_tenant.get(owner.tenant, ()) if entry.owner == owner]:
            if supersedes(entry.item):
                self._remove(entry)
        losers: list[Owner] = []
        while self._count >= self._limit or self._bytes + size > self._max_bytes:
            is_long = self._count >= self._limit
            held: Counter[Owner] = Counter()
            for entries in self._by_tenant.values():
                for entry in entries:
                    held[entry.owner] += 1 if is_long else entry.size
            loser = gives_way(held, owner, 1 if is_long else size) or owner
            losers.append(loser)
            entries = self._by_tenant.get(loser.tenant, deque())
            oldest = next((entry for entry in entries if entry.owner == loser), None)
            if oldest is None:
                return losers
            self._remove(oldest)
        self._by_tenant.setdefault(owner.tenant, deque()).append(_Entry(owner, item, size))
        self._count += 1
        self._bytes += size
        return losers

    def put_back(self, item: _T, owner: Owner, size: int) -> None:
        """Return an item that was taken; it is again the first of its tenant, whose turn comes after all others'."""
        own = self._by_tenant.pop(owner.tenant, deque())
        own.appendleft(_Entry(owner, item, size))
        self._by_tenant[owner.tenant] = own
        self._count += 1
        self._bytes += size

    def take(self) -> tuple[_T, Owner, int]:
        """Remove the oldest item of the tenant whose turn it is: it, its owner and its size.

        Raises:
            StopIteration: the queue is empty.
        """
        tenant = next(iter(self._by_tenant))
        own = self._by_tenant.pop(tenant)
        entry = own.popleft()
        if own:
            self._by_tenant[tenant] = own
        self._count -= 1
        self._bytes -= entry.size
        return entry.item, entry.owner, entry.size

    def _remove(self, entry: _Entry[_T]) -> None:
        own = self._by_tenant[entry.owner.tenant]
        own.remove(entry)
        if not own:
            del self._by_tenant[entry.owner.tenant]
        self._count -= 1
        self._bytes -= entry.size
