"""Ranks the nodes of a rendezvous in the order of the infrastructure, such as Slurm's.

c10d ranks them by the text of their addresses, so that node-10 comes before node-9, and on Kubernetes by chance. The
agents agree on another order in the store of the round, after c10d has said who takes part.
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
    """The rank of each node, by its number; nodes without one come last. Equal ones keep their order."""
    order = sorted(range(len(numbers)), key=lambda at: (numbers[at] is None, numbers[at] or 0, at))
    ranks = [0] * len(numbers)
    for rank, at in enumerate(order):
        ranks[at] = rank
    return ranks


class NodeOrder:
    """The place of this node.

    Args:
        number: of this node in the infrastructure; None: not known.
        address: of this node; empty: its host name.
    """

    def __init__(self, number: int | None, address: str) -> None:
        self._number = number
        self._address = address or socket.getfqdn()
        self._server: dist.TCPStore | None = None

    def apply(self, info: RendezvousInfo, shares_store: bool) -> RendezvousInfo:
        """What c10d's rendezvous returned, with the rank of this node in the order. All nodes call it, once each.

        Args:
            shares_store: ranks use a store of the agents, and do not make one of their own.

        Raises:
            Exception: whatever the store raises, such as when a node has gone.
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
        """The rank of each node in the order, by its rank of c10d."""
        store.set(str(rank), "" if self._number is None else str(self._number))
        if rank == 0:
            texts = [store.get(str(at)).decode() for at in range(world_size)]
            ranks = positions([int(text) if text else None for text in texts])
            store.set(_ALL, ",".join(map(str, ranks)))
        return [int(text) for text in store.get(_ALL).decode().split(",")]

    def _serve(self) -> int:
        """The port of a new store for the ranks: they would take what is left of an attempt before for their own."""
        self._server = dist.TCPStore(host_name=self._address, port=0, is_master=True, multi_tenant=True)
        return int(self._server.port)
