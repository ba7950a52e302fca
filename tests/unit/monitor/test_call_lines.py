"""Where a rank made its latest collectives, from its ring."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from otel_fr import rank_report
from otel_fr.config import Config
from otel_fr.monitor.ring import call_lines as module
from otel_fr.monitor.ring.call_lines import MAX_FRAMES, call_lines
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.reporter import Reporter
from otel_fr.rank_report import MAX_LINES_GROUPS, ReportedLines
from otel_fr.ring import KIND_GROUP, KIND_P2P, RingReader
from otel_fr.stacks import ALPHABET, CallLines
from tests.support.followed_ring import FollowedRing
from tests.support.rings import RankRing, signature

STEP = signature("all_reduce", reduce_op="sum")


def site_of(line: int) -> tuple[tuple[str, int, str], ...]:
    return tuple([("/job/train.py", line + outer, f"f{outer}") for outer in range(MAX_FRAMES + 2)])


def read(ring: RankRing) -> tuple[ReportedLines, ...]:
    with RingReader.open(ring.writer.path) as reader:
        return call_lines(reader)


def lines_of(reported: ReportedLines) -> dict[int, int]:
    """By number, the line of the innermost frame."""
    own = CallLines(*structs.astuple(reported)).by_number()
    assert all(len(place) == MAX_FRAMES for place in own.values())
    return {number: int(place[0].split(":")[1].split()[0]) for number, place in own.items()}


@given(st.lists(st.integers(1, 100), min_size=1, max_size=90))
def test_the_newest_calls_are_those_of_the_ring(tmp_path_factory: pytest.TempPathFactory, lines: list[int]) -> None:
    ring = RankRing(tmp_path_factory.mktemp("ring"), 0, 2)
    for line in lines:
        ring.call(STEP, site=site_of(line))
    (found,) = read(ring)
    made = dict(enumerate(lines, 1))
    assert lines_of(found) == {number: made[number] for number in lines_of(found)}
    assert found.first + len(found.calls) - 1 == len(lines)
    missing = set(made) - set(lines_of(found))
    assert not missing or len({made[n] for n in lines_of(found)} | {made[max(missing)]}) > len(ALPHABET)
    rank_report.build(rank_report.RankReport(rank=0, number=1, groups=(), lines=(found,)))
    ring.writer.close()


def test_of_the_groups_used_last_and_without_other_calls(tmp_path: Path) -> None:
    ring = RankRing(tmp_path, 0, 2)
    for name in ("1", "2", "3"):
        ring.group(name, (0, 1), name)
    for name in ("1", "2", "3", "1"):
        ring.call(STEP, group=name, site=site_of(int(name)))
    ring.call(signature("send", peer=1), group="2", kind=KIND_P2P)
    ring.call(signature("destroy_process_group"), group="2", kind=KIND_GROUP)
    latest, before = read(ring)
    assert MAX_LINES_GROUPS == 2
    assert (lines_of(latest), lines_of(before)) == ({1: 1, 2: 1}, {1: 3})
    ring.writer.close()


def test_no_more_than_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINES", 3)
    ring = RankRing(tmp_path, 0, 2)
    for line in range(1, 8):
        ring.call(STEP, site=site_of(line) if line != 6 else ())
    (found,) = read(ring)
    assert (lines_of(found), found.calls[1]) == ({5: 5, 7: 7}, module.UNKNOWN)
    ring.writer.close()


def test_they_are_reported_also_where_no_stacks_were_taken(tmp_path: Path) -> None:
    """As when a rank ends without an error, and its peers' calls fail at once."""
    with closing(FollowedRing(tmp_path)) as ring:
        ring.append(ring.add_group(1), 1)
        reporter = Reporter(ring.reader, Config.from_env({}), Exporter(None, None))
        reporter.follow()
        assert [len(reporter.build(9, stacks=stacks).lines) for stacks in (True, False)] == [1, 0]
