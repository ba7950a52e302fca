"""TCP sockets as a kernel described them: all peers but one had been cut off for two seconds."""

from __future__ import annotations

import base64
import socket
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.monitor.process.connections import (
    MAX_ADDRESSES,
    RECENT_SECONDS,
    SLOW_SECONDS,
    Connections,
    connections_of,
    find_socket,
    host_of,
    slow_round_trips,
)
from otel_fr.monitor.process.tcp_sockets import ESTABLISHED, SYN_SENT, TcpSocket, parse, read_sockets
from otel_fr.rank_report import MAX_ROUND_TRIPS

V4 = (
    "eNqbwcjAIMLAxAACFzMYGJi4GBjYXzAQBT6zovIboPTCb0wMrAwcYDYHAz+Y5mEQZWCEyrMxiDEEAWkZRiYGLjzmNzCQDmDmMaOJ/0cDDIMc"
    "zECPF0ZQvDzvqmeAByMYoPNB4AtSvKQgiS8mIV7AYuyrGB/IMDM4zIFEhgQTdreycCJoEAaF7mkgFgDbAw77elC8gMRg8XIaFgNzpy3gRYof"
    "dHczIsWlAAMWz+IAjESrYqQwXhiZr6kId3D5MqIYBORjhNZXaLxosKL6cQkp8cLCzMAMjBeG5xJguRWskHhhxOIjC0bUeLkDVBvxi4FBCygm"
    "AY0XRqgZsDCeYAFUC6RDj1WZIOebVDS/gFzLhMSGuJOBweH6SXAWbGiRwxp+MD0RUMYERhzx8gfiJmYg25CNvPzyvIv9BTH55RsrdjMXkZlf"
    "YIUXKfnlOhALQcsvULxwo+WX69Cc8dtg0hMuPPHCjBTGnEhpwqKP+Sa+8GPCUl7QJL8AM8xZBuFOYvLLd1ZEvkfO046/iI8XJhawKKODE1Qd"
    "0JYIBuz5ZccZTTgNwqD88uEXNJ1eYIbnly2sqPULIxH1CxNaXUTt+gLkTohfGBluMhNWLwJOK4h4AQEAJE2r8Q=="
)
V6 = (
    "eNqbwcjAIMLAxAACFzMYGLgYGZlnsQh3/GVgKGdAAEY0PlgDowCEo8EKoVOgksu+MTGwMnCA2RwM/GCah0GUgREqz8YgxiAEpGUYmRgYWZgZ"
    "mNlXMTI8lwDLTQGaJQE0HaaWkQHBtoAyWDgh+A5Qbc4vBgY/oJg6EP///7+eEWoGM1TPCXOgWiD9vl5fngGiBgwYGVABO5I9flCaFUm+oUWO"
    "ARuA6fkCZUxgxFTD8huiEuQmZiBtxMZAEMzAEi/XdIQ7ECr+/+fyZWRE44M1MOGIl6UUxMsKEuMlAhgvnAyQsIfFywqkeJlgAZGTTeYXYiQy"
    "XjipHC8d/4DEHwaS4kUErBYRLyAAAOyyRhk="
)
LISTENS, LOOPBACK, FAST, MAPPED, SIX, CONNECTS = "194209", "194210", "194212", "194213", "194214", "195137"


def recorded(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


SOCKETS = parse(recorded(V4)) + parse(recorded(V6))


def test_the_answer_of_a_kernel() -> None:
    found = {one.inode: one for one in SOCKETS}
    assert len(SOCKETS) == 7
    assert found[LISTENS] == TcpSocket(LISTENS, "0.0.0.0:2024", "0.0.0.0:0", 10)
    assert found[FAST] == TcpSocket(FAST, "10.77.1.1:54820", "10.77.1.2:5000", ESTABLISHED, 3, 42e-6, 2.308, 101)
    assert found[SIX][:5] == (SIX, "[fd00:77::1]:39428", "[fd00:77::2]:5000", ESTABLISHED, 3)
    assert find_socket(SOCKETS, CONNECTS) == ("10.77.1.2:5001", SYN_SENT)
    assert find_socket(SOCKETS, LISTENS) == ("0.0.0.0:2024", 10)
    assert find_socket(SOCKETS, "7") is None


def test_peers_that_acknowledge_nothing_are_named_once_for_each_address() -> None:
    found = connections_of(SOCKETS, {one.inode for one in SOCKETS})
    assert found == Connections(("10.77.1.1", "fd00:77::1"), ("10.77.1.2:5000", "[fd00:77::2]:5000"))
    assert [host_of(peer) for peer in found.unreached] == ["10.77.1.2", "fd00:77::2"]


def test_an_ipv4_address_of_an_ipv6_socket_is_written_as_one() -> None:
    assert connections_of(SOCKETS, {MAPPED}) == Connections(("10.77.1.1",), ("10.77.1.2:5000",))


def test_one_packet_sent_again_is_no_sign_yet_and_a_healthy_connection_is_none() -> None:
    healthy = TcpSocket("1", "10.77.1.1:9", "10.77.1.2:5000", ESTABLISHED)
    assert connections_of([*SOCKETS, healthy], {CONNECTS, "1"}) == Connections(("10.77.1.1",), ())


def test_sockets_of_other_processes_and_those_that_listen_count_for_nothing() -> None:
    assert connections_of(SOCKETS, {LISTENS, "7"}) == Connections()
    assert connections_of(SOCKETS, {LOOPBACK}) == Connections(), "others cannot reach this address"


def used(inode: int, peer: str, seconds: float, **more: float) -> TcpSocket:
    """A connection that is used now."""
    given = TcpSocket(str(inode), "10.0.0.1:1", peer, ESTABLISHED, 0, seconds, 0.1, 1_000)
    return given._replace(**more)  # type: ignore[arg-type]  # some of the fields are whole numbers


def test_of_many_a_few_are_kept() -> None:
    many = [TcpSocket(str(n), f"10.0.{n}.1:9", f"10.0.{n}.2:9", ESTABLISHED, 3) for n in range(250)]
    found = connections_of(many, {one.inode for one in many})
    assert len(found.addresses) == len(found.unreached) == MAX_ADDRESSES
    slow = [used(n, f"10.0.0.{n}:9", 1.0, acknowledged=n) for n in range(250)]
    kept = slow_round_trips(slow, {one.inode for one in slow})
    assert list(kept) == [f"10.0.0.{n}" for n in range(249, 249 - MAX_ROUND_TRIPS, -1)], "to which most was sent"


def slow(*sockets: TcpSocket) -> dict[str, float]:
    return dict(slow_round_trips(sockets, {"1", "2"}))


def test_a_round_trip_that_takes_long_is_told() -> None:
    assert slow(used(1, "10.0.0.2:9", 0.4), used(2, "10.0.0.3:9", 0.0002)) == {"10.0.0.2": 0.4}
    assert slow(used(1, "10.0.0.2:9", SLOW_SECONDS - 0.01)) == {}, "a delayed acknowledgement"
    assert slow(used(3, "10.0.0.2:9", 0.4)) == {}, "another process's"


def test_one_slow_connection_of_several_to_an_address_is_not_the_link() -> None:
    assert slow(used(1, "10.0.0.2:9", 0.4), used(2, "10.0.0.2:8", 0.0002)) == {}
    assert slow(used(1, "10.0.0.2:9", 0.4), used(2, "10.0.0.2:8", 0.5)) == {"10.0.0.2": 0.4}


def test_a_connection_that_is_not_used_shows_nothing() -> None:
    assert slow(used(1, "10.0.0.2:9", 0.4, idle=RECENT_SECONDS)) == {}
    assert slow(used(1, "10.0.0.2:9", 0.4, state=8)) == {}
    unused = used(2, "10.0.0.2:8", 0.0002, idle=RECENT_SECONDS)
    assert slow(used(1, "10.0.0.2:9", 0.4), unused) == {"10.0.0.2": 0.4}


def test_a_cut_answer_has_the_sockets_before_the_cut() -> None:
    answer = recorded(V4)
    for length in range(len(answer)):
        assert parse(answer[:length]) == SOCKETS[: min(5, length // 408)]


pieces = st.sampled_from([recorded(V4), recorded(V6)])


@given(pieces, st.lists(st.tuples(st.integers(0, 2_059), st.integers(0, 255)), max_size=20))
def test_changed_bytes_do_no_harm(piece: bytes, changes: list[tuple[int, int]]) -> None:
    data = bytearray(piece)
    for at, value in changes:
        data[at % len(data)] = value
    check(bytes(data))


@given(st.binary(max_size=600), st.integers(0, 700), st.sampled_from([2, 3, 20, 99]))
def test_any_bytes_do_no_harm(body: bytes, length: int, kind: int) -> None:
    check(struct.pack("=IHHII", length, kind, 0, 0, 0) + body)


def check(piece: bytes) -> None:
    found = parse(piece)
    assert len(found) * 72 <= len(piece)
    inodes = {one.inode for one in found}
    connections_of(found, inodes)
    assert len(slow_round_trips(found, inodes)) <= MAX_ROUND_TRIPS


def test_a_kernel_that_does_not_answer_has_no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError("no such family")

    monkeypatch.setattr(socket, "socket", refuse)
    assert read_sockets() == []
