"""The kernel's tables of TCP sockets, ``/proc/net/tcp`` and ``tcp6``: who a process is connected to, and who is not
reached. ``get_tcp4_sock`` in net/ipv4/tcp_ipv4.c of Linux writes their fields.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple

MAX_ADDRESSES: Final = 4
"""Own addresses, and peers that are not reached, that are kept."""
REPEATS: Final = 3
"""Times for which the kernel has sent something again before its peer counts as not reached: that takes 1.4 s where it
waits as short as it can, each time twice as long as before. A few lost packets are acknowledged before."""

_RETRANSMITS: Final = "01"
"""The timer of a socket whose kernel waits for an acknowledgement."""
_BYTES: Final = -1 if sys.byteorder == "little" else 1


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


class _Row(NamedTuple):
    own: str
    peer: str
    state: int
    is_unreached: bool


def parse_address(text: str) -> str:
    """From one of the tables (``"0100007F:1F90"`` is ``"127.0.0.1:8080"``).

    Raises:
        ValueError: not an address.
    """
    host, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(host[at : at + 8])[::_BYTES] for at in range(0, len(host), 8))
    if packed[:12] == b"\0" * 10 + b"\xff\xff":
        packed = packed[12:]
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    if len(packed) == 16:
        return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"
    raise ValueError(f"not an address: {text}")


def host_of(address: str) -> str:
    """``"10.0.0.7"`` of ``"10.0.0.7:41234"``, ``"fd00::7"`` of ``"[fd00::7]:41234"``."""
    return address.rpartition(":")[0].strip("[]")


def find_socket(table: str, inode: str) -> tuple[str, int] | None:
    """The peer of a TCP socket and its state; the peer of one that listens is its own address."""
    for row in _rows(table, (inode,)):
        return (row.own if row.peer.endswith(":0") else row.peer), row.state
    return None


def connections_of(tables: Iterable[str], inodes: Container[str]) -> Connections:
    """Those of the sockets with these inodes, from the text of each table."""
    addresses: dict[str, None] = {}
    unreached: dict[str, str] = {}
    for row in (row for table in tables for row in _rows(table, inodes)):
        own = host_of(row.own)
        if not row.peer.endswith(":0") and not ipaddress.ip_address(own).is_loopback:
            addresses[own] = None
        if row.is_unreached:
            unreached.setdefault(host_of(row.peer), row.peer)
    return Connections(tuple(addresses)[:MAX_ADDRESSES], tuple(unreached.values())[:MAX_ADDRESSES])


def _rows(table: str, inodes: Container[str]) -> Iterator[_Row]:
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[9] in inodes:
            with contextlib.suppress(ValueError):
                is_unreached = fields[5].startswith(_RETRANSMITS) and int(fields[6], 16) >= REPEATS
                yield _Row(parse_address(fields[1]), parse_address(fields[2]), int(fields[3], 16), is_unreached)
