"""What follows once stacks that were requested for several reasons have arrived."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from otel_fr import semconv as names
from otel_fr.config import Config
from otel_fr.monitor import stack_watch
from otel_fr.monitor.process.connections import NO_CONNECTIONS
from otel_fr.monitor.process.ending import RankProcess
from otel_fr.monitor.stack_watch import NATIVE_EVERY_SECONDS, REASON_STALL, StackWatch
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.reporter import Reporter
from tests.support.followed_ring import FollowedRing


class Rig(FollowedRing):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.files = Mock(shows_present_fault=lambda: False)
        config = Config(native_stacks="off")
        self.reporter = Reporter(self.reader, config, Exporter(None, None))
        self.watch = StackWatch(RankProcess(os.getpid(), 0), self.reader, None, config, self.reporter, self.files)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    known = SimpleNamespace(is_over=lambda _: True, text="", connections=NO_CONNECTIONS)
    monkeypatch.setattr(stack_watch, "Look", lambda *_: known)
    with closing(Rig(tmp_path)) as rig:
        yield rig


def test_native_stacks_that_never_come_are_not_awaited_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that has passed a limit is ended once its stacks are known."""
    monkeypatch.setattr(stack_watch, "NativeLook", lambda *_: SimpleNamespace(result=None))
    rig.watch._takes_native = True
    now = time.monotonic()
    rig.watch.ask(names.EVENT_OVERDUE, now)
    for seconds in (0.0, NATIVE_EVERY_SECONDS - 1.0):
        rig.watch.step(now + seconds)
        assert rig.watch.is_busy
    rig.watch.step(now + NATIVE_EVERY_SECONDS)
    assert not rig.watch.is_busy


@pytest.mark.parametrize("later", [names.EVENT_STACKS, names.EVENT_OVERDUE])
def test_a_stall_has_its_file_although_stacks_are_requested_again_before_they_arrive(rig: Rig, later: str) -> None:
    now = time.monotonic()
    for event in (names.EVENT_STALLED, later):
        rig.watch.ask(event, now)
    rig.watch.step(now)
    rig.files.write.assert_called_once_with(REASON_STALL, of_fault=True)
    rig.watch.ask(later, now)
    rig.watch.step(now)
    assert rig.files.write.call_count == 1
