"""When a rank begins to report that a round trip to a host takes long, and when it stops."""

from __future__ import annotations

import os
import time

import pytest

from otel_fr.monitor.process import link_watch
from otel_fr.monitor.process.connections import Connections
from otel_fr.monitor.process.link_watch import EVERY_SECONDS, LOOKS, LinkWatch
from otel_fr.monitor.process.stacks import Stacks
from otel_fr.monitor.process.state import Process
from otel_fr.monitor.process.tcp_sockets import ESTABLISHED, TcpSocket
from otel_fr.rank_report import ReportedRoundTrip

OWN = ("10.0.0.1",)
SLOW = {"10.0.0.2": 0.41234}


def watch(local_rank: int = 1) -> LinkWatch:
    return LinkWatch(os.getpid(), local_rank)


def test_what_takes_long_at_looks_in_a_row_is_told_until_it_does_not() -> None:
    links = watch()
    for _ in range(LOOKS - 1):
        links.take(OWN, SLOW)
        assert links.reported(None) == {"addresses": (), "unreached": (), "round_trips": ()}
    links.take(OWN, {})
    for _ in range(LOOKS):
        assert not links.slow
        links.take(OWN, SLOW)
    told = (ReportedRoundTrip("10.0.0.2", 0.412),)
    assert links.reported(None) == {"addresses": OWN, "unreached": (), "round_trips": told}
    links.take(OWN, {})
    assert not links.slow


def test_connections_of_a_machine_to_itself_are_none_to_others() -> None:
    links = watch()
    for _ in range(LOOKS):
        links.take(OWN, {"10.0.0.1": 0.5})
    assert not links.slow


def test_one_rank_of_a_machine_says_whose_its_addresses_are() -> None:
    for local_rank, told in ((0, OWN), (1, ())):
        links = watch(local_rank)
        links.take(OWN, {})
        assert links.reported(None)["addresses"] == told
        still = Stacks(connections=Connections(("10.0.0.9",), ("10.0.0.2:1",)))
        assert links.reported(still)["addresses"] == ("10.0.0.9",)
        assert links.reported(still)["unreached"] == ("10.0.0.2:1",)


def test_a_look_is_made_now_and_then_if_there_are_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def read() -> list[TcpSocket]:
        looks.append(1.0)
        return [TcpSocket("7", "10.0.0.1:1", "10.0.0.2:1", ESTABLISHED, 0, 0.4, 0.1)]

    monkeypatch.setattr(link_watch, "read_sockets", read)
    monkeypatch.setattr(Process, "socket_inodes", lambda _: {"7"})
    links = watch()
    now = time.monotonic()
    links.step(now, far=2)
    assert not looks, "ranks that start together do not look together"
    for number in range(1, LOOKS + 1):
        now += EVERY_SECONDS
        links.step(now, far=0)  # for as long as all ranks are here
        links.step(now, far=2)
        links.step(now + 0.1, far=2)
        assert links._thread is not None
        links._thread.join()
        assert len(looks) == number
    assert links.slow == {"10.0.0.2": 0.4}
    assert len(looks) == LOOKS
