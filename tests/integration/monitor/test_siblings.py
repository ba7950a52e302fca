"""The monitors of a machine share a control stream: the choice of the watcher, and messages to the others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_fr.config import Config
from otel_fr.control.v1.control_pb2 import Command, Dump, PeerFailed, TakeStacks, WatchRequest
from otel_fr.monitor.control import client as client_module
from otel_fr.monitor.control import siblings
from otel_fr.monitor.control.client import ControlClient
from otel_fr.monitor.control.node import Node, run_folder
from otel_fr.monitor.control.siblings import (
    COMMAND,
    LEAVING,
    MAX_PACKET,
    MAX_REPORT,
    OPENING,
    STATE,
    TURN,
    Hub,
    Line,
    take,
)
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.otlp_sender import GrpcTarget
from tests.support.otlp_sink import Sink, grpc_sink
from tests.support.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen times that only bound others' waits: on a busy machine, any step may take a second."""
    for name in ("TAKE_SECONDS", "HEARD_SECONDS", "HANDOVER_SECONDS"):
        monkeypatch.setattr(siblings, name, PATIENCE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a path that is longer than a socket's address."""
    made = tmp_path / ("x" * 120) / "run-1"
    made.parent.mkdir()
    return made


def watcher(folder: Path, rank: int = 0, key: str = "k") -> Hub:
    found = take(folder, key, rank)
    assert isinstance(found, Hub)
    return found


def sibling(folder: Path, rank: int) -> Line:
    found = take(folder, "k", rank)
    assert isinstance(found, Line)
    return found


def received(line: Line, kind: bytes = COMMAND) -> bytes:
    """Return the content of the next packet of that kind. Heartbeats may come before it."""
    while packet := line.receive(PATIENCE):
        if packet[:1] == kind:
            return packet[1:]
    raise AssertionError("the line has ended")


def test_one_monitor_watches_and_passes_on_what_is_for_the_others(folder: Path) -> None:
    hub = watcher(folder)
    one, two = sibling(folder, 1), sibling(folder, 2)
    assert hub.ranks() == [1, 2]
    assert hub.pass_on(b"for all", ()) == 0
    assert hub.pass_on(b"for one", (2, 7)) == 0
    assert hub.pass_on(b"for all again", ()) == 0
    assert [received(one) for _ in range(2)] == [b"for all", b"for all again"]
    assert [received(two) for _ in range(3)] == [b"for all", b"for one", b"for all again"]
    hub.changed.clear()
    one.hang_up()
    assert hub.changed.wait(PATIENCE)
    until(lambda: hub.ranks() == [2])  # the change that it waited for may be the arrival of the second monitor
    hub.close()


def test_a_folder_that_was_made_for_a_run_that_is_over_does_not_stay(folder: Path) -> None:
    watcher(folder).close()
    until(lambda: not folder.exists())
    node = Node(folder.parent, "run", 0)
    node.join()
    shared = run_folder(folder.parent, "run")
    watcher(shared).close()
    until(lambda: not [*shared.glob("line-*")])
    assert shared.exists()
    assert node.leave()
    node.remove()
    assert not shared.exists()


def test_the_state_of_the_stream_is_what_a_monitor_learns_first_and_whenever_it_changes(folder: Path) -> None:
    hub = watcher(folder)
    hub.say(OPENING)
    line = sibling(folder, 1)
    hub.say(5.0)
    states = []
    while 5.0 not in states:
        states.append(siblings.state_in(STATE + received(line, STATE)))
    assert states[0] == OPENING
    hub.close()


def test_monitors_of_another_collector_or_of_no_folder_have_streams_of_their_own(folder: Path, tmp_path: Path) -> None:
    one, other = watcher(folder), watcher(folder, 1, "another")
    (tmp_path / "file").touch()
    assert take(tmp_path / "file", "k", 2) is None
    for hub in (one, other):
        hub.close()


def test_a_sibling_that_does_not_read_loses_commands_and_holds_up_nobody(folder: Path) -> None:
    hub = watcher(folder)
    full, reads = sibling(folder, 1), sibling(folder, 2)
    command, lost, sent = b"x" * (MAX_PACKET // 8), 0, 0
    while not lost:
        lost, sent = hub.pass_on(command, (1,)), sent + 1
    assert sent * len(command) < 8 * MAX_PACKET
    assert hub.pass_on(b"small", ()) <= 1
    assert received(reads) == b"small"
    assert received(full) == command
    hub.close()


def test_reports_of_siblings_reach_the_watcher_and_who_sends_anything_else_is_cut_off(folder: Path) -> None:
    hub = watcher(folder)
    one, two = sibling(folder, 1), sibling(folder, 2)
    found: list[bytes] = []

    def take_report(data: bytes) -> None:
        if data == b"bad":
            raise ValueError
        found.append(data)

    hub.on_report = take_report
    assert not one.pass_report(b"x" * MAX_REPORT), "it sends a large one itself"
    assert one.pass_report(b"from one")
    assert two.pass_report(b"from two")
    until(lambda: sorted(found) == [b"from one", b"from two"])
    hub.begin_turn()
    received(one, TURN)
    assert two.pass_report(b"bad")
    until(lambda: hub.ranks() == [1])
    hub.close()


def test_no_reports_are_passed_to_a_watcher_that_says_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = watcher(folder)
    line = sibling(folder, 1)
    assert line.pass_report(b"report")
    monkeypatch.setattr(siblings, "HEARD_SECONDS", 0.0)
    assert not line.pass_report(b"report")
    hub.close()


WATCHER = """
import sys, threading
from pathlib import Path
from otel_fr.monitor.control.siblings import Hub, take
hub = take(Path(sys.argv[1]), "k", 0)
assert isinstance(hub, Hub)
hub.say(5.0)
print(flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def watching_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    command = [sys.executable, "-c", WATCHER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process
        finally:
            process.kill()


def test_when_the_watcher_is_killed_one_of_the_others_takes_over(folder: Path) -> None:
    with watching_process(folder) as process:
        lines = [sibling(folder, rank) for rank in (1, 2)]
        process.kill()
        for line in lines:
            with pytest.raises(AssertionError, match="has ended"):
                received(line)
    hub = watcher(folder, 1)
    line = sibling(folder, 2)
    assert hub.ranks() == [2]
    line.close()
    hub.close()


def test_a_monitor_watches_for_itself_if_the_watcher_is_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "TAKE_SECONDS", 0.1)
    with watching_process(folder) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert take(folder, "k", 1) is None


def test_a_watcher_that_leaves_passes_commands_on_until_another_one_watches(folder: Path) -> None:
    old = watcher(folder)
    line = sibling(folder, 1)
    leaving = threading.Thread(target=old.leave)
    leaving.start()
    received(line, LEAVING)
    new = watcher(folder, 1)
    old.pass_on(b"late", ())
    assert received(line) == b"late"
    assert leaving.is_alive()
    line.hang_up()
    leaving.join(PATIENCE)
    assert not leaving.is_alive()
    old.close()
    another = sibling(folder, 2)
    assert new.ranks() == [2], "the old one removed nothing of the new one"
    another.close()
    new.close()


# ---- with a stream


class Monitors:
    """The control clients of one machine's ranks.

    Attributes:
        taken: rank -> the commands that it has received.
    """

    def __init__(self, sink: Sink, folder: Path) -> None:
        self._target = GrpcTarget(sink.address.removeprefix("http://"), True, None, ())
        self._folder = folder
        self.taken: dict[int, list[Command]] = {}
        self.clients: dict[int, ControlClient] = {}

    def start(self, rank: int) -> ControlClient:
        identity = RankIdentity.of({"job_id": "job", "run_id": "run", "rank": rank, "host": "node"}, Config(), 1)
        taken = self.taken[rank] = []

        def on_command() -> None:
            while (command := client.inbox.take("run")) is not None:
                taken.append(command)

        client = ControlClient(self._target, lambda: identity, on_command, folder=self._folder)
        self.clients[rank] = client
        client.start()
        until(lambda: client.listening)
        return client

    def stop(self) -> None:
        for client in self.clients.values():
            client.stop()

    def received(self, kind: str) -> list[int]:
        """Return the ranks that have received this kind of command."""
        return [rank for rank, taken in self.taken.items() if any(one.HasField(kind) for one in taken)]


@pytest.fixture
def sink() -> Iterator[Sink]:
    with grpc_sink(control=True) as opened:
        yield opened


@pytest.fixture
def monitors(sink: Sink, tmp_path: Path) -> Iterator[Monitors]:
    made = Monitors(sink, tmp_path)
    yield made
    made.stop()


def served(requests: list[WatchRequest]) -> list[tuple[int, list[int]]]:
    return [(request.rank, list(request.others)) for request in requests]


def test_the_monitors_of_a_machine_share_a_stream_and_each_gets_its_commands(sink: Sink, monitors: Monitors) -> None:
    for rank in (0, 1, 2):
        monitors.start(rank)
    sink.wait(lambda: (0, [1, 2]) in served(sink.updates), what="a stream for all")
    sink.commands.put(Command(take_stacks=TakeStacks(), ranks=[1]))
    sink.commands.put(Command(peer_failed=PeerFailed(ranks=[7], kind="ended")))
    until(lambda: monitors.received("peer_failed") == [0, 1, 2])
    assert monitors.received("take_stacks") == [1]
    monitors.clients[2].stop()
    sink.wait(lambda: served(sink.updates)[-1] == (0, [1]), what="a rank less")
    assert len(sink.watchers) == 1
    assert sum(client.lost for client in monitors.clients.values()) == 0


def test_no_command_is_lost_when_the_watcher_leaves(
    sink: Sink, monitors: Monitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(client_module, "OVERLAP_SECONDS", 1.0)  # messages on their way arrive in this time
    sink.has_queues = True

    def send_on_all(command: Command) -> None:
        for commands in list(sink.queues):
            commands.put(command)

    for rank in (0, 1, 2):
        monitors.start(rank)
    sink.wait(lambda: (0, [1, 2]) in served(sink.updates), what="a stream for all")
    over = threading.Event()

    def send() -> None:
        number = 0
        while not over.wait(0.005):
            number += 1
            send_on_all(Command(dump=Dump(reason=str(number))))
        send_on_all(Command(take_stacks=TakeStacks()))

    sending = threading.Thread(target=send)
    sending.start()
    monitors.clients[0].stop()
    assert len(sink.watchers) == 2
    assert all(monitors.clients[rank].listening for rank in (1, 2)), "what the old one said last counts no more"
    over.set()
    sending.join()
    until(lambda: monitors.received("take_stacks")[-2:] == [1, 2])
    for rank in (1, 2):
        numbers = {int(one.dump.reason) for one in monitors.taken[rank] if one.HasField("dump")}
        assert numbers == set(range(1, max(numbers) + 1))


def test_a_monitor_that_did_not_find_the_watcher_at_first_looks_again_soon_then_less_often(
    sink: Sink, monitors: Monitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, a new watcher may answer late."""
    monitors.start(0)
    waits: list[float | None] = []
    watch = ControlClient._watch

    def noted(own: ControlClient, identity: RankIdentity, seconds: float | None) -> bool:
        waits.append(seconds)
        return watch(own, identity, seconds)

    def found_at_the_third_look(*given: Any) -> Hub | Line | None:
        return take(*given) if len(waits) >= 2 else None

    monkeypatch.setattr(client_module, "ALONE_SECONDS", 0.2)
    monkeypatch.setattr(client_module, "LONGEST_ALONE_SECONDS", 0.3)
    monkeypatch.setattr(ControlClient, "_watch", noted)
    monkeypatch.setattr(siblings, "take", found_at_the_third_look)
    monitors.start(1)
    until(lambda: monitors.clients[0].siblings == 1)
    first, second = waits
    assert first is not None
    assert second is not None
    assert 0.0 < first <= 0.2 < second <= 0.3


def test_all_monitors_of_a_machine_know_that_the_stream_is_lost(sink: Sink, monitors: Monitors) -> None:
    clients = [monitors.start(rank) for rank in (0, 1)]
    sink.commands.put(None)
    until(lambda: not any(client.listening for client in clients))
    sink.wait(lambda: len(sink.watchers) == 2, what="another stream")
    until(lambda: all(client.listening for client in clients))
    assert [request.rank for request in sink.watchers] == [0, 0]
