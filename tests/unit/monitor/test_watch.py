"""The monitor's loop: what continues after an error, and what ends with a run."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr.config import Config, SpanBatching
from otel_fr.monitor import dumping, watch
from otel_fr.monitor.control.link import Link
from otel_fr.monitor.files import REASON_REQUEST
from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.monitor.wake import Wake
from tests.support.followed_ring import FollowedRing
from tests.support.waiting import until


class Watched(FollowedRing):
    """A ring and its monitor, which watches this process and does not run yet. ``rank``: the rank's socket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, meta={"run_id": "run 0"})
        ours, self.rank = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        exporter, config = Exporter(None, None), Config(native_stacks="off")
        self.reporter, self.link = Reporter(self.reader, config, exporter), Link(ours.detach())
        self.monitor = watch.Monitor(
            reader=self.reader,
            ring=self.writer.path,
            process=RankProcess(os.getpid(), 0),
            link=self.link,
            config=config,
            reporter=self.reporter,
            exporter=exporter,
            control=None,
            wake=Wake(),
        )

    def close(self) -> None:
        self.rank.close()
        self.link.close()
        super().close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with closing(Watched(tmp_path)) as watched:
        yield watched


def test_an_error_in_the_answer_to_a_message_does_not_end_the_watch(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def follow(everything: bool = False) -> bool:
        if everything:
            raise ValueError("a damaged record")
        return False

    ended: list[bool] = []
    monkeypatch.setattr(watch, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(watched.reporter, "follow", follow)
    monkeypatch.setattr(watched.monitor, "_recording_over", lambda: "a damaged record" in caplog.text)
    monkeypatch.setattr(watched.monitor, "_finish", lambda: ended.append(True))
    watched.rank.send(b'{"cmd": "bye"}')
    watched.monitor.run()
    assert ended == [True]


def test_the_file_of_the_run_before_is_not_reported_as_one_of_the_next_run(watched: Watched) -> None:
    files = watched.monitor._files
    files.last = "/dumps/otel_fr_rank_3"
    watched.monitor._tick()
    assert files.last
    watched.writer.set_meta({"run_id": "run 1", "session": 1})
    watched.monitor._tick()
    assert not files.last


def test_storage_that_does_not_answer_does_not_stop_the_loop(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of files depend on which files there are."""
    looking: set[str] = set()
    looked = threading.Event()

    def paths(*_: object) -> list[tuple[Path, dumping.Format]]:
        looking.add(threading.current_thread().name)
        looked.set()
        return []

    monkeypatch.setattr(dumping, "paths", paths)
    watched.add_group(0, backend="nccl")
    watched.monitor._files.write(REASON_REQUEST, of_fault=True)
    assert looked.wait(60.0)
    assert looking == {"otel-fr-dump"}


def test_spans_that_come_during_the_last_flush_are_sent_at_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank waits for it. Of calls of a device, PyTorch's recorder shows the end only then."""
    sent = threading.Event()

    def send(*_: object) -> bool:
        sent.set()
        return True

    sender: Any = SimpleNamespace(send=send)
    exporter = Exporter(sender, None, None, SpanBatching(delay=3_600.0))
    monkeypatch.setattr(watched.monitor, "_exporter", exporter)
    exporter.start()
    watched.monitor._handle_message({"cmd": "bye"})
    watched.monitor._step_last_flush(0.0)
    until(lambda: not exporter._workers[0]._hurry)  # nothing is queued
    exporter.put_spans(1, b"", Resource())
    watched.monitor._flush_until = float("inf")
    watched.monitor._step_last_flush(0.0)
    assert sent.wait(60.0)
