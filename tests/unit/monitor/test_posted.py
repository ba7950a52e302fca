"""Sends and receives that are posted: they block no rank before a thread waits for them, and never once dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from otel_fr.config import Config
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.report_builder import reported_call
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.rank_report import to_object
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, POSTED, RecordState
from tests.support.followed_ring import FollowedRing
from tests.support.rings import float_signature

SECOND = 1_000_000_000


class Ring(FollowedRing):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.group = self.add_group(1)
        self.reporter = Reporter(self.reader, Config.from_env({}), Exporter(None, None))
        self.now = time.monotonic_ns()

    def issue(self, seconds_ago: float, kind: int = KIND_P2P) -> int:
        """Returns the ticket."""
        what = float_signature("recv", peer=1, tag=0) if kind == KIND_P2P else None
        return self.append(self.group, self.now - int(seconds_ago * SECOND), what, kind=kind)[0]

    def oldest(self) -> tuple[int | None, float]:
        """Record id of the call that counts as the oldest, and for how many seconds a thread has waited for it."""
        self.reporter.follow()
        found = self.reporter.situation(self.now)
        return found.oldest, (self.now - found.oldest_since_ns) / SECOND


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    with closing(Ring(tmp_path)) as ring:
        yield ring


def test_a_call_that_is_waited_for_since_just_now_does_not_hide_a_younger_one_that_stands_still(ring: Ring) -> None:
    posted = ring.issue(60)
    ring.writer.wait(posted, POSTED)
    ring.issue(30, KIND_COLLECTIVE)
    assert ring.oldest() == (1, 30.0)
    ring.writer.wait(posted, ring.now - 2 * SECOND)
    assert ring.oldest() == (1, 30.0)


def test_the_call_that_has_been_waited_for_longest_counts(ring: Ring) -> None:
    for seconds_ago, waited in ((60, 2), (50, 5), (4, 3)):
        ring.writer.wait(ring.issue(seconds_ago), ring.now - waited * SECOND)
    assert ring.oldest() == (1, 5.0)


def test_a_send_whose_work_was_dropped_is_not_waited_for(ring: Ring) -> None:
    """No thread can wait for it any more."""
    ticket = ring.issue(60)
    ring.writer.wait(ticket, POSTED)
    ring.writer.complete(ticket, ring.group, 0, RecordState.UNKNOWN, 0)
    assert ring.oldest()[0] is None
    (item,) = ring.reporter.run.tail.uncertain.values()
    written = to_object(reported_call(item, ring.now))
    assert written["posted"] is True
    assert "wait_s" not in written


def test_a_call_that_has_failed_is_not_waited_for_any_more(ring: Ring) -> None:
    ticket = ring.issue(60)
    ring.writer.wait(ticket, ring.now - 5 * SECOND)
    ring.writer.complete(ticket, ring.group, 0, RecordState.FAILED, ring.now - SECOND)
    ring.reporter.follow()
    (item,) = ring.reporter.run.tail.failed
    assert not {"posted", "wait_s"} & to_object(reported_call(item, ring.now)).keys()
