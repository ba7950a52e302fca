"""The rank's end of the connection to its monitor."""

from __future__ import annotations

import faulthandler
import json
import socket
import threading
from pathlib import Path
from typing import Any

from otel_fr.capture.replaced import Replacements
from otel_fr.capture.responder import Responder, StackSignal, _is_default
from otel_fr.capture.sites import Sites
from otel_fr.capture.stacks import MAX_TEXT


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


def test_the_longest_stacks_fit_a_packet_whatever_their_script() -> None:
    ours, monitors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    responder = Responder(ours, Sites(()), lambda _: None, lambda _: None, lambda: None)
    message = {"stacks": "\u8bad" * (MAX_TEXT - 1) + "\udcff"}  # also a path that is not UTF-8
    assert responder.send(message)
    assert json.loads(monitors.recv(1 << 20)) == message
    responder.close()
    monitors.close()
