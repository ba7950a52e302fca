"""The rank's end of the connection to its monitor."""

from __future__ import annotations

import faulthandler
import json
import linecache
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from otel_fr.capture import stacks as stacks_module
from otel_fr.capture.replaced import Replacements
from otel_fr.capture.responder import Responder, StackSignal, _is_default
from otel_fr.capture.sites import Sites
from otel_fr.capture.stacks import MAX_TEXT, all_stacks


def test_a_message_that_cannot_be_handled_does_not_end_the_connection() -> None:
    ours, monitors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found: list[int] = []
    lost = threading.Event()

    def fail(message: dict[str, Any]) -> None:
        raise RuntimeError("can't start new thread")

    responder = Responder(ours, Sites(()), found.append, fail, lost.set)
    for message in ({"cmd": "peer_failed"}, {"cmd": "stacks", "ident": "x"}, {"pid": 7}, {"ok": "bye"}):
        monitors.send(json.dumps(message).encode())
    assert responder.say_goodbye(10.0)
    assert (found, responder.has_lost_monitor, lost.is_set()) == ([7], False, False)
    monitors.close()
    assert lost.wait(10.0)
    responder.close()


def test_a_signal_that_may_still_come_keeps_its_handler_whichever_thread_stops_recording(tmp_path: Path) -> None:
    replaced = Replacements()
    stacks = StackSignal(tmp_path / "ring.stacks", replaced)
    replaced.undo()
    thread = threading.Thread(target=stacks.close, args=(True,))
    thread.start()
    thread.join()
    assert not stacks.path.exists()
    assert not _is_default(stacks.number)
    faulthandler.unregister(stacks.number)
    assert _is_default(stacks.number)


def test_a_file_system_that_does_not_answer_delays_no_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank whose answer is late seems to run no Python."""
    answers, asked = threading.Event(), list[str]()
    real = linecache.getlines

    def hang(file: str) -> list[str]:
        asked.append(file)
        answers.wait()
        return real(file)

    monkeypatch.setattr(linecache, "getlines", hang)
    monkeypatch.setattr(linecache, "cache", {})
    monkeypatch.setattr(stacks_module, "_READ_SECONDS", 0.0)
    here = "in test_a_file_system_that_does_not_answer_delays_no_stacks\n"
    for _ in range(2):
        text, _, _ = all_stacks(Sites(()), (0, ""), None)
        assert here in text
        assert f"{here}    " not in text
    assert len(asked) <= 1, "one thread waits for the files"
    answers.set()
    stacks_module._sources._thread.join()
    text, _, _ = all_stacks(Sites(()), (0, ""), None)
    assert f"{here}    text, _, _ = all_stacks(" in text


def test_the_longest_stacks_fit_a_packet_whatever_their_script() -> None:
    ours, monitors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    responder = Responder(ours, Sites(()), lambda _: None, lambda _: None, lambda: None)
    message = {"stacks": "\u8bad" * (MAX_TEXT - 1) + "\udcff"}  # also a path that is not UTF-8
    assert responder.send(message)
    assert json.loads(monitors.recv(1 << 20)) == message
    responder.close()
    monitors.close()
