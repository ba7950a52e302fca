"""Orders the nodes of a rendezvous as the infrastructure does, such as Slurm.

c10d orders them by the text of their addresses: node-10 comes before node-9, and on Kubernetes the order is random. The
agents agree on another order in the store of the round, once c10d has decided who takes part.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

_PREFIX: Final = "otel-fr/order"
_ALL: Final = "all"


def positions(numbers: Sequence[int | None]) -> list[int]:
    """Return the rank of each node by its number. Nodes without a number come last. Equal nodes keep their order."""
    order = sorted(range(len(numbers)), key=lambda at: (numbers[at] is None, numbers[at] or 0, at))
    ranks = [0] * len(numbers)
    for rank, at in enumerate(order):
        ranks[at] = rank
    return ranks


class NodeOrder:
    """This node's position in the order.

    Args:
        number: this node's number in the infrastructure; None: unknown.
        address: this node's address; empty: its host name.
    """

    def __init__(self, number: int | None, address: str) -> None:
        self._number = number
        self._address = address or socket.getfqdn()
        self._server: dist.TCPStore | None = None

    def apply(self, info: RendezvousInfo, shares_store: bool) -> RendezvousInfo:
        """Return the result of c10d's rendezvous with this node's rank in the order. Each node must call this once.

        Args:
            info: the result of c10d's rendezvous.
            shares_store: True if ranks use a store of the agents and create none of their own.

        Raises:
            Exception: any exception of the store, for example if a node has ended.
        """
        if info.world_size < 2:
            return info
        store = dist.PrefixStore(_PREFIX, info.store)
        ranks = self._exchange(store, info.rank, info.world_size)
        rank = ranks[info.rank]
        if ranks == sorted(ranks):
            return info
        # As without an order, MASTER_ADDR is the node of rank 0: programs may start servers of their own there.
        port = self._serve() if rank == 0 and shares_store else 0
        address = RendezvousStoreInfo.build(rank, store, local_addr=self._address, server_port=port)
        return RendezvousInfo(info.store, rank, info.world_size, address)

    def _exchange(self, store: dist.Store, rank: int, world_size: int) -> list[int]:
        """Return the rank of each node in the order, by its rank in c10d."""
        store.set(str(rank), "" if self._number is None else str(self._number))
        if rank == 0:
            texts = [store.get(str(at)).decode() for at in range(world_size)]
            ranks = positions([int(text) if text else None for text in texts])
            store.set(_ALL, ",".join(map(str, ranks)))
        return [int(text) for text in store.get(_ALL).decode().split(",")]

    def _serve(self) -> int:
        """Start a new store for the ranks and return its port. In an old store, they would find values of an earlier
        attempt."""
        self._server = dist.TCPStore(host_name=self._address, port=0, is_master=True, multi_tenant=True)
        return int(self._server.port)
