"""How a rank ends that must end because a peer has failed."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.capture import peer_actions
from otel_fr.fault_tolerance.peers import EXIT_CODE, PeerFailure, Peers

FAILURE = PeerFailure((1,), "rank 1 was killed", ("default_pg",), "", "ended")


def test_output_that_nobody_reads_does_not_keep_a_rank_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    released, statuses = threading.Event(), list[int]()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=released.wait))
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(peer_actions, "_FLUSH_SECONDS", 0.0)
    actions: Any = peer_actions.PeerActions.__new__(peer_actions.PeerActions)
    actions._grace = 0.0
    ending = threading.Thread(target=actions._exit_later, daemon=True)
    ending.start()
    ending.join(10.0)
    released.set()
    assert statuses == [EXIT_CODE]


def test_a_rank_that_can_start_no_thread_ends_its_calls_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    done, received = list[object](), list[PeerFailure]()
    monkeypatch.setattr(os, "_exit", done.append)
    monkeypatch.setattr(peer_actions._log, "warning", lambda *_: done.append("a message that nobody may read"))
    peers = Peers()
    peers.subscribe(received.append)
    actions: Any = peer_actions.PeerActions.__new__(peer_actions.PeerActions)
    actions._peers, actions._mode, actions._grace = peers, "exit", 0.0
    actions._has_excepthook, actions._is_exiting = True, False
    actions._connections = SimpleNamespace(shut_down=done.append)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        peers.deliver(FAILURE)
        actions._end_calls(FAILURE, ["0"])
    assert done == ["0", EXIT_CODE, "a message that nobody may read"]
    peers.deliver(FAILURE)
    (subscriber,) = peers._subscribers.values()
    subscriber.stop()
    subscriber._thread.join()
    assert received == [FAILURE, FAILURE], "the callback gets what it has missed"
