"""The monitor's loop continues after an error, wherever the error comes from."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from otel_fr.config import Config
from otel_fr.monitor import watch
from otel_fr.monitor.control.link import Link
from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.monitor.wake import Wake
from tests.support.followed_ring import FollowedRing


def test_an_error_in_the_answer_to_a_message_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "TICK_SECONDS", 0.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(FollowedRing(tmp_path)) as ring, theirs:
        exporter, config = Exporter(None, None), Config(native_stacks="off")
        reporter, link = Reporter(ring.reader, config, exporter), Link(ours.detach())
        monitor = watch.Monitor(
            reader=ring.reader,
            ring=ring.writer.path,
            process=RankProcess(os.getpid(), 0),
            link=link,
            config=config,
            reporter=reporter,
            exporter=exporter,
            control=None,
            wake=Wake(),
        )

        def follow(everything: bool = False) -> bool:
            if everything:
                raise ValueError("a damaged record")
            return False

        ended: list[bool] = []
        monkeypatch.setattr(reporter, "follow", follow)
        monkeypatch.setattr(monitor, "_recording_over", lambda: "a damaged record" in caplog.text)
        monkeypatch.setattr(monitor, "_finish", lambda: ended.append(True))
        theirs.send(b'{"cmd": "bye"}')
        monitor.run()
        assert ended == [True]
        link.close()
