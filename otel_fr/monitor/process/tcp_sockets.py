"""Reads the kernel's TCP sockets from its socket statistics (sock_diag(7)), like ss(8).

No privilege is needed. Only sockets of this network namespace are visible. A kernel without ``tcp_diag`` shows none.
The structures are in linux/inet_diag.h and linux/tcp.h. Newer kernels only append fields to the latter.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

SYN_SENT: Final = 2
"""State of a socket that connects (net/tcp_states.h)."""
ESTABLISHED: Final = 1
MAX_BYTES: Final = 32 << 20
"""Most bytes read of one answer: some 80,000 sockets."""
ANSWER_SECONDS: Final = 1.0
"""How long the kernel may take for one piece of its answer."""

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_DUMP: Final = 0x301
"""NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH."""
_ERROR, _DONE = 2, 3
_INFO: Final = 2
"""INET_DIAG_INFO."""
_STATES: Final = 0xFFF & ~(1 << 3 | 1 << 6)
"""All states but SYN_RECV and TIME_WAIT: in these, no process has the socket."""
_RETRANSMITS: Final = 1
"""The timer of a socket while the kernel waits for an acknowledgement."""
_HEAD: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI48x")
_MESSAGE: Final = struct.Struct("=BBBB2s2s16s16s28xI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_TIMES: Final = struct.Struct("=44xI8xI8xI48xQ")
"""Fields of ``tcp_info``: last_data_sent, last_ack_recv, rtt, bytes_acked."""
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"


class TcpSocket(NamedTuple):
    """One socket.

    Attributes:
        inode: the inode by which ``/proc/PID/fd`` names the socket.
        own, peer: addresses, as ``"10.0.0.7:41234"`` or ``"[fd00::7]:41234"``. A listening socket's peer has port 0.
        state: `ESTABLISHED`, `SYN_SENT` or another state of net/tcp_states.h.
        repeats: how often the kernel has retransmitted data that the peer has not acknowledged.
        round_trip: smoothed round-trip time in seconds; 0: unknown.
        idle: seconds since data was last sent, or an acknowledgement last received, whichever is longer ago.
        acknowledged: bytes acknowledged since the connection was made.
    """

    inode: str
    own: str
    peer: str
    state: int
    repeats: int = 0
    round_trip: float = 0.0
    idle: float = 0.0
    acknowledged: int = 0


def read_sockets() -> list[TcpSocket]:
    """Return all sockets of this network namespace that a process may have. If the kernel fails, some are missing."""
    found: list[TcpSocket] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            for piece in _answer(family):
                found += parse(piece)
    return found


def _answer(family: int) -> Iterator[bytes]:
    """Yield the pieces of the kernel's answer.

    Raises:
        OSError: the kernel does not answer.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(ANSWER_SECONDS)
        wanted = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, _STATES)
        link.sendto(_HEAD.pack(_HEAD.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0) + wanted, (0, 0))
        size = 0
        while size < MAX_BYTES:
            piece = link.recv(1 << 16)
            size += len(piece)
            yield piece
            if any(kind in (_ERROR, _DONE) for kind, _ in _messages(piece)):
                return


def parse(piece: bytes) -> list[TcpSocket]:
    """Return the sockets in a piece of the answer. Truncated parts, and parts that are no sockets, are left out."""
    found = (_socket(body) for kind, body in _messages(piece) if kind == _SOCK_DIAG_BY_FAMILY)
    return [one for one in found if one is not None]


def _messages(piece: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each message."""
    at = 0
    while at + _HEAD.size <= len(piece):
        length, kind, *_ = _HEAD.unpack_from(piece, at)
        if length < _HEAD.size or at + length > len(piece):
            return
        yield kind, piece[at + _HEAD.size : at + length]
        at += length + 3 & ~3


def _socket(body: bytes) -> TcpSocket | None:
    if len(body) < _MESSAGE.size:
        return None
    family, state, timer, repeats, own_port, port, own, peer, inode = _MESSAGE.unpack_from(body)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return None
    found = TcpSocket(
        str(inode),
        _address(family, own, own_port),
        _address(family, peer, port),
        state,
        repeats if timer == _RETRANSMITS else 0,
    )
    info = _info(body)
    if state != ESTABLISHED or len(info) < _TIMES.size:
        return found
    sent, acknowledged, round_trip, count = _TIMES.unpack_from(info)
    return found._replace(round_trip=round_trip / 1e6, idle=max(sent, acknowledged) / 1e3, acknowledged=count)


def _info(body: bytes) -> bytes:
    """Return the ``tcp_info`` of a message, or nothing if it has none."""
    at = _MESSAGE.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        if kind == _INFO:
            return body[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3
    return b""


def _address(family: int, packed: bytes, port: bytes) -> str:
    number = int.from_bytes(port, "big")
    if family == socket.AF_INET or packed.startswith(_MAPPED):
        four = packed[:4] if family == socket.AF_INET else packed[12:]
        return f"{socket.inet_ntop(socket.AF_INET, four)}:{number}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{number}"
