"""The TCP connections of a process: its addresses, unreachable peers, and peers with slow round trips."""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from otel_fr.monitor.process.tcp_sockets import ESTABLISHED, TcpSocket
from otel_fr.rank_report import MAX_ROUND_TRIPS

MAX_ADDRESSES: Final = 4
"""How many own addresses, and how many unreached peers, are kept."""
REPEATS: Final = 3
"""A peer counts as not reached after this many retransmissions. With the kernel's shortest timeout, which doubles each
time, they take 1.4 s. A few lost packets are acknowledged earlier."""
SLOW_SECONDS: Final = 0.1
"""A round trip of this length counts as slow. Between the hosts of a job it takes less than a millisecond. A peer that
has nothing to send may delay its acknowledgements by 40 ms (TCP_DELACK_MIN, net/tcp.h)."""
RECENT_SECONDS: Final = 10.0
"""A connection that was last used longer ago does not show how long a round trip takes now."""


class Connections(NamedTuple):
    """TCP connections of a process.

    Attributes:
        addresses: the process's own addresses, without loopback addresses.
        unreached: peers that do not acknowledge retransmissions, as ``"10.0.0.7:41234"``, one for each address.
    """

    addresses: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()


NO_CONNECTIONS: Final = Connections()


def host_of(address: str) -> str:
    """Return ``"10.0.0.7"`` for ``"10.0.0.7:41234"``, and ``"fd00::7"`` for ``"[fd00::7]:41234"``."""
    return address.rpartition(":")[0].strip("[]")


def find_socket(sockets: Iterable[TcpSocket], inode: str) -> tuple[str, int] | None:
    """Return the peer and the state of a TCP socket. For a listening socket, return its own address."""
    for one in sockets:
        if one.inode == inode:
            return (one.peer if _has_peer(one) else one.own), one.state
    return None


def connections_of(sockets: Iterable[TcpSocket], inodes: Container[str]) -> Connections:
    """Return the connections of the sockets with these inodes."""
    addresses: dict[str, None] = {}
    unreached: dict[str, str] = {}
    for one in sockets:
        if one.inode not in inodes:
            continue
        if _has_peer(one) and not _is_loopback(host_of(one.own)):
            addresses[host_of(one.own)] = None
        if one.repeats >= REPEATS:
            unreached.setdefault(host_of(one.peer), one.peer)
    return Connections(tuple(addresses)[:MAX_ADDRESSES], tuple(unreached.values())[:MAX_ADDRESSES])


def slow_round_trips(sockets: Iterable[TcpSocket], inodes: Container[str]) -> Mapping[str, float]:
    """Return the seconds of slow round trips by the peer's address.

    Of several connections to an address that are in use now, the fastest counts: if only one is slow, the link is not
    the reason. If there are many slow peers, return the ones that acknowledged most data.
    """
    fastest: dict[str, float] = {}
    sent: dict[str, int] = {}
    for one in sockets:
        used = one.state == ESTABLISHED and one.round_trip and one.idle < RECENT_SECONDS
        if used and one.inode in inodes:
            peer = host_of(one.peer)
            fastest[peer] = min(one.round_trip, fastest.get(peer, one.round_trip))
            sent[peer] = sent.get(peer, 0) + one.acknowledged
    slow = [peer for peer, seconds in fastest.items() if seconds >= SLOW_SECONDS]
    return {peer: fastest[peer] for peer in sorted(slow, key=sent.__getitem__, reverse=True)[:MAX_ROUND_TRIPS]}


def _has_peer(one: TcpSocket) -> bool:
    return not one.peer.endswith(":0")


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback
