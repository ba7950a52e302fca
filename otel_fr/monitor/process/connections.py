"""Who a process is connected to by TCP, who is not reached, and to whom a round trip takes long."""

from __future__ import annotations

import ipaddress
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from otel_fr.monitor.process.tcp_sockets import ESTABLISHED, TcpSocket
from otel_fr.rank_report import MAX_ROUND_TRIPS

MAX_ADDRESSES: Final = 4
"""Own addresses, and peers that are not reached, that are kept."""
REPEATS: Final = 3
"""Times for which the kernel has sent something again before its peer counts as not reached: that takes 1.4 s where it
waits as short as it can, each time twice as long as before. A few lost packets are acknowledged before."""
SLOW_SECONDS: Final = 0.1
"""Of a round trip, from which it counts as slow. Between the hosts of a job it takes under a millisecond; a peer that
has nothing to send may delay its acknowledgements, by 40 ms (TCP_DELACK_MIN, net/tcp.h)."""
RECENT_SECONDS: Final = 10.0
"""A connection that was used longer ago does not show how long a round trip takes now."""


class Connections(NamedTuple):
    """TCP connections of a process.

    Attributes:
        addresses: its own ends, without those that only its own machine reaches.
        unreached: the peers that do not acknowledge what the kernel sends again and again: ``"10.0.0.7:41234"``, one of
            each address.
    """

    addresses: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()


NO_CONNECTIONS: Final = Connections()


def host_of(address: str) -> str:
    """``"10.0.0.7"`` of ``"10.0.0.7:41234"``, ``"fd00::7"`` of ``"[fd00::7]:41234"``."""
    return address.rpartition(":")[0].strip("[]")


def find_socket(sockets: Iterable[TcpSocket], inode: str) -> tuple[str, int] | None:
    """The peer of a TCP socket and its state; the peer of one that listens is its own address."""
    for one in sockets:
        if one.inode == inode:
            return (one.peer if _has_peer(one) else one.own), one.state
    return None


def connections_of(sockets: Iterable[TcpSocket], inodes: Container[str]) -> Connections:
    """The connections of the sockets with these inodes."""
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
    """By address of a peer, seconds of a round trip that takes long, by the fastest connection that is used now.

    Those to which most was sent, if there are many.
    Where one connection is slow and another to the same address is not, it is not the way between them.
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
