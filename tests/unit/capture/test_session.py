"""The recording of one process, without torch and a monitor."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from otel_fr.capture import session as session_module
from otel_fr.capture.runs import Runs
from otel_fr.capture.session import Session
from otel_fr.fault_tolerance.peers import PeerFailure, peers
from otel_fr.ring import RingWriter


@pytest.fixture
def session() -> Iterator[Any]:
    session: Any = Session.__new__(Session)
    session._meta = {"nonce": "", "run_id": "first", "world_size": 3}
    session._quorum_group = ""
    session.recorder = SimpleNamespace(lock=threading.RLock(), on=False)
    for name in ("group_gone", "group_created", "renumber"):
        setattr(session.recorder, name, lambda *_: None)
    session._find_group = None
    yield session
    peers.forget_all()


def test_no_error_of_a_run_is_explained_by_a_peer_of_the_run_before(session: Any) -> None:
    quorum: Any = SimpleNamespace(first_rank=0, group_name="torchft_quorum_2_rank_0")
    peers.deliver(PeerFailure((2,), "rank 2 was killed", ("torchft_quorum_1_rank_0",), "i1", "ended"))
    session.quorum_formed(None, quorum, {"nonce": "", "run_id": "first"})
    assert peers.failed == {2}
    session.quorum_formed(None, quorum, {"nonce": "", "run_id": "second"})
    assert not peers.failed
    assert peers.ended_by is None


@pytest.mark.parametrize(("groups", "expected"), [({}, 3), ({"replica": None}, 0)])
def test_an_error_concerns_the_next_run_if_groups_continue(
    groups: dict[str, None], expected: int, session: Any, tmp_path: Path
) -> None:
    session._runs, session._notices_creations = Runs(session._meta), True
    session.recorder = SimpleNamespace(lock=threading.RLock(), on=True, groups=groups)
    with closing(RingWriter.create([tmp_path], "ring", 10, session._meta)) as session._writer:
        session._writer.count("hook_errors", 3)
        session._enter({"nonce": "", "run_id": "second"})
    assert session._meta.get("errors_before", 0) == expected


def test_a_rank_that_can_start_no_thread_is_recorded_without_a_monitor(
    session: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(session_module, "start_monitor", lambda *_, **__: None)
    monkeypatch.setattr(session_module, "Responder", fail)
    session._monitors, session._responder, session.recorder.sites = 0, None, None
    session._writer = SimpleNamespace(path=Path("ring"), set_monitor_pid=None)
    session._peer_actions = SimpleNamespace(handle=None)
    session._connect()
    assert session._responder is None
    assert "this rank has no monitor: can't start new thread" in caplog.text
