"""Shares of what is bounded: who gives way when it is full, so that no job and no tenant takes all of it.

The shares are not fixed: whoever has the most gives way to whoever has less, first among the tenants, then among the
jobs of one tenant. So all of the room can be used, and a thousand jobs of one tenant leave room for the job of another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class Owner(NamedTuple):
    """Who an alert or a delivery is about. ``tenant``: see `otel_fr_collector.network.tokens.tenant_of`."""

    tenant: str
    job: str


def gives_way(held: Iterable[Owner], newcomer: Owner) -> Owner | None:
    """Who loses an entry of what is full so that ``newcomer`` gets one.

    None: nobody, because the newcomer would then have more than whoever loses one; two that have the same never take
    turns in losing it.

    Args:
        held: the owner of each entry.
    """
    jobs = Counter(held)
    tenants: Counter[str] = Counter()
    for owner, count in jobs.items():
        tenants[owner.tenant] += count
    largest = max(tenants, key=lambda tenant: tenants[tenant], default=newcomer.tenant)
    if tenants[newcomer.tenant] + 1 >= tenants[largest]:
        largest = newcomer.tenant
    own = [owner for owner in jobs if owner.tenant == largest]
    loser = max(reversed(own), key=lambda owner: jobs[owner], default=newcomer)  # of equals, the one that came last
    if largest == newcomer.tenant and jobs[newcomer] + 1 >= jobs[loser]:
        return None
    return loser


class FairQueue(Generic[_T]):
    """A queue from which tenants are served in turn; what belongs to one tenant stays in order.

    Args:
        limit: items at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_tenant: dict[str, deque[tuple[Owner, _T]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: _T, owner: Owner, supersedes: Callable[[_T], bool]) -> Owner | None:
        """Add an item in place of those of its owner that it supersedes.

        Returns:
            whose oldest item was dropped because the queue was full, or the item itself if its owner has no other;
            None: nothing was dropped.
        """
        own = self._by_tenant.get(owner.tenant, deque())
        kept = deque(entry for entry in own if entry[0] != owner or not supersedes(entry[1]))
        self._count -= len(own) - len(kept)
        if kept:
            self._by_tenant[owner.tenant] = kept
        else:
            self._by_tenant.pop(owner.tenant, None)
        loser = None
        if self._count >= self._limit:
            held = [entry[0] for entries in self._by_tenant.values() for entry in entries]
            loser = gives_way(held, owner) or owner
            if not self._drop_oldest(loser):
                return owner
        self._by_tenant.setdefault(owner.tenant, deque()).append((owner, item))
        self._count += 1
        return loser

    def put_back(self, item: _T, owner: Owner) -> None:
        """Return an item that was taken; it is again the first of its tenant, whose turn comes after all others'."""
        own = self._by_tenant.pop(owner.tenant, deque())
        own.appendleft((owner, item))
        self._by_tenant[owner.tenant] = own
        self._count += 1

    def take(self) -> tuple[_T, Owner]:
        """Remove the oldest item of the tenant whose turn it is; raises StopIteration if the queue is empty."""
        tenant = next(iter(self._by_tenant))
        own = self._by_tenant.pop(tenant)
        owner, item = own.popleft()
        if own:
            self._by_tenant[tenant] = own
        self._count -= 1
        return item, owner

    def _drop_oldest(self, owner: Owner) -> bool:
        """Remove the oldest item of an owner; False: it has none."""
        entries = self._by_tenant.get(owner.tenant, deque())
        index = next((index for index, entry in enumerate(entries) if entry[0] == owner), None)
        if index is None:
            return False
        del entries[index]
        self._count -= 1
        if not entries:
            del self._by_tenant[owner.tenant]
        return True
