"""The socket between a rank and its monitor."""

from __future__ import annotations

import json
import socket

import pytest

from otel_fr.monitor.control.link import Link


def pair(kind: socket.SocketKind) -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    return Link(ours.detach()), theirs


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_messages_go_both_ways_and_nonsense_is_passed_over(kind: socket.SocketKind) -> None:
    link, rank = pair(kind)
    for text in ('{"cmd": "bye"}', "no json", "[1]", '{"cmd": "dump"}'):
        rank.send(text.encode() + b"\n")
    assert link.receive() == [{"cmd": "bye"}, {"cmd": "dump"}]
    assert link.send({"ok": "bye"})
    assert json.loads(rank.recv(100)) == {"ok": "bye"}
    assert link.receive() == []


def test_packets_need_no_end_of_line() -> None:
    link, rank = pair(socket.SOCK_SEQPACKET)
    rank.send(b'{"a": 1}')
    rank.send(b'{"b": 2}')
    assert link.receive() == [{"a": 1}, {"b": 2}]


def test_a_line_may_come_in_pieces() -> None:
    link, rank = pair(socket.SOCK_STREAM)
    rank.send(b'{"cmd"')
    assert link.receive() == []
    rank.send(b': "bye"}\n{"x')
    assert link.receive() == [{"cmd": "bye"}]


def test_the_end_of_the_connection_is_no_error() -> None:
    link, rank = pair(socket.SOCK_SEQPACKET)
    rank.close()
    assert link.receive() == []
    assert link.fd is None
    assert not link.send({"cmd": "stacks"})


def test_a_rank_that_does_not_read_never_blocks_the_monitor() -> None:
    link, _rank = pair(socket.SOCK_SEQPACKET)
    assert not all(link.send({"cmd": "stacks", "pad": "x" * 10_000}) for _ in range(1000))
