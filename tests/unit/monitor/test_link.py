"""The socket between a rank and its monitor."""

from __future__ import annotations

import json
import socket

from otel_fr.monitor.control.link import Link


def pair() -> tuple[Link, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Link(ours.detach()), theirs


def test_messages_go_both_ways_and_nonsense_is_passed_over() -> None:
    link, rank = pair()
    for text in ('{"cmd": "bye"}', "no json", "[1]", '{"cmd": "dump"}'):
        rank.send(text.encode())
    assert link.receive() == [{"cmd": "bye"}, {"cmd": "dump"}]
    assert link.send({"ok": "bye"})
    assert json.loads(rank.recv(100)) == {"ok": "bye"}
    assert link.receive() == []


def test_the_end_of_the_connection_is_no_error() -> None:
    link, rank = pair()
    rank.close()
    assert link.receive() == []
    assert link.fd is None
    assert not link.send({"cmd": "stacks"})


def test_a_message_that_is_too_long_does_not_end_the_connection() -> None:
    link, rank = pair()
    assert not link.send({"cmd": "x" * (64 << 20)})
    assert link.send({"ok": "bye"})
    assert json.loads(rank.recv(100)) == {"ok": "bye"}


def test_a_rank_that_does_not_read_never_blocks_the_monitor() -> None:
    link, _rank = pair()
    assert not all(link.send({"cmd": "stacks", "pad": "x" * 10_000}) for _ in range(1000))
