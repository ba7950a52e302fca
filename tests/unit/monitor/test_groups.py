"""The progress of groups as the monitor reports it: exact to the last call, also of groups that were destroyed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from otel_fr.config import Config
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.report_builder import MAX_DESTROYED
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.rank_report import ReportedGroup
from otel_fr.ring import RecordState
from otel_fr.ring.layout import PROGRESS_ROWS
from tests.support.followed_ring import FollowedRing


class Rank(FollowedRing):
    """A ring, and a reporter that follows it as the monitor's loop does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1000)
        self.reporter = Reporter(self.reader, Config.from_env({}), Exporter(None, None))

    def step(self, group: int, *, ends: bool = True) -> None:
        call = self.append(group, 1_000)
        if ends:
            self.writer.complete(*call, RecordState.COMPLETED, 2_000)

    def report(self) -> dict[str, ReportedGroup]:
        """What the next report says, by the group's name."""
        self.reporter.run.groups.refresh()
        self.reporter.follow(everything=True)
        return {group.name: group for group in self.reporter.build(10**9).groups}


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    with closing(Rank(tmp_path)) as rank:
        yield rank


def progress(group: ReportedGroup) -> tuple[int, int, bool]:
    return group.enqueued, group.completed, group.is_destroyed


def test_a_destroyed_group_is_reported_with_the_calls_it_made_after_the_last_report(rank: Rank) -> None:
    group = rank.add_group(1)
    rank.step(group)
    assert progress(rank.report()["1"]) == (1, 1, False)
    rank.step(group)
    rank.step(group, ends=False)
    rank.writer.remove_group(group)
    assert progress(rank.report()["1"]) == (3, 2, True)


def test_a_group_that_was_created_and_destroyed_between_two_reports_is_known(rank: Rank) -> None:
    rank.report()
    group = rank.add_group(1)
    rank.step(group)
    rank.writer.remove_group(group)
    rank.report()
    assert progress(rank.report()["1"]) == (1, 1, True)


def test_a_group_found_missing_is_destroyed_only_once_its_records_were_read(rank: Rank) -> None:
    group = rank.add_group(1)
    rank.step(group)
    rank.report()
    rank.step(group)
    rank.writer.remove_group(group)
    (found,) = rank.reporter.build(10**9).groups  # no record was read in between
    assert progress(found) == (1, 1, False)
    assert progress(rank.report()["1"]) == (2, 2, True)


def test_groups_without_a_row_are_not_taken_for_destroyed(rank: Rank) -> None:
    groups = [rank.add_group(number) for number in range(PROGRESS_ROWS + 1)]
    for group in groups:
        rank.step(group)
    rank.report()
    found = rank.report()
    assert len(found) == PROGRESS_ROWS
    assert not any(group.is_destroyed for group in found.values())


def test_of_many_destroyed_groups_the_newest_are_reported(rank: Rank) -> None:
    for number in range(3 * MAX_DESTROYED):
        group = rank.add_group(number)
        rank.step(group)
        rank.writer.remove_group(group)
        if number % 50 == 0:
            assert len(rank.report()) <= 2 * MAX_DESTROYED
    rank.report()
    for _ in range(3):
        found = rank.report()
        assert list(found) == [str(number) for number in range(2 * MAX_DESTROYED, 3 * MAX_DESTROYED)]
        assert len(rank.reporter.run.tail.reached) == MAX_DESTROYED
