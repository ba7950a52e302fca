"""When a rank counts as stalled or idle, and how often it is reported."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_fr.monitor.rules import (
    REPORT_SECONDS,
    WITNESSES,
    Cadence,
    Episodes,
    Recovery,
    Situation,
    is_idle,
    report_interval,
    stalled_call,
)
from otel_fr.monitor.witness import is_one

STALL = 5.0


def at(seconds: float, moved: float = 0.0, oldest: int | None = None, issued: float = 0.0) -> Situation:
    return Situation(int(seconds * 1e9), int(moved * 1e9), oldest, int(issued * 1e9))


@pytest.mark.parametrize(("age", "stalled"), [(0.0, False), (3.9, False), (4.0, True), (60.0, True)])
def test_a_call_is_stalled_after_four_fifths_of_the_window(age: float, stalled: bool) -> None:
    assert stalled_call(at(100 + age, oldest=7, issued=100), STALL) == (7 if stalled else None)


def test_a_rank_whose_other_calls_move_on_still_has_a_stalled_one() -> None:
    assert stalled_call(at(10, moved=9.99, oldest=7, issued=1), STALL) == 7


@pytest.mark.parametrize(("still", "idle"), [(3.9, False), (4.0, True)])
def test_a_rank_is_idle_when_nothing_is_in_flight_and_nothing_was_issued(still: float, idle: bool) -> None:
    assert is_idle(at(100 + still, moved=100), STALL) is idle


def test_a_rank_with_a_call_in_flight_is_never_idle() -> None:
    assert not is_idle(at(100, moved=0, oldest=7, issued=99.9), STALL)


@pytest.mark.parametrize(
    ("still", "interval"), [(0.0, 1.0), (2.4, 1.0), (2.5, 0.25), (5.0, 0.25), (10.0, 0.25), (10.1, 1.0), (900, 1.0)]
)
def test_reports_come_quickly_from_half_the_window_to_twice_the_window(still: float, interval: float) -> None:
    assert report_interval(at(100 + still, moved=100), STALL) == interval


def steady(cadence: Cadence, seconds: int) -> list[float]:
    """The intervals of a rank that moves all the time, second by second."""
    return [cadence.interval(at(now, moved=now)) for now in range(seconds)]


def test_a_rank_that_moves_as_usual_reports_more_and_more_seldom_if_the_collector_allows_it() -> None:
    cadence = Cadence(STALL, 5.0, 8)
    assert set(steady(cadence, 100)) == {REPORT_SECONDS}
    cadence.most = 5.0
    intervals = steady(Cadence(STALL, 5.0, 8), 1) + steady(cadence, 100)
    assert intervals == sorted(intervals)
    assert (intervals[12], intervals[-1]) == (1.0, 2.5)


@pytest.mark.parametrize(
    ("stall", "peer_timeout", "most"),
    [(5.0, 5.0, 2.5), (20.0, 20.0, 5.0), (20.0, 5.0, 2.5), (5.0, 1.0, 1.0), (1.0, 9.0, 1.0)],
)
def test_two_reports_come_before_anybody_could_give_the_rank_up(stall: float, peer_timeout: float, most: float) -> None:
    cadence = Cadence(stall, peer_timeout, 8)
    cadence.most = 5.0
    assert max(steady(cadence, 200)) == most


@pytest.mark.parametrize(
    "unusual",
    [at(100, moved=99), at(100, moved=99.99, oldest=7, issued=99.5), at(100, moved=90)],
    ids=["still", "waits", "idle"],
)
def test_a_rank_that_stands_still_or_waits_reports_each_second_again_at_once(unusual: Situation) -> None:
    cadence = Cadence(STALL, 5.0, 8)
    cadence.most = 5.0
    assert steady(cadence, 100)[-1] == 2.5
    assert cadence.interval(unusual) <= REPORT_SECONDS
    assert cadence.interval(at(101, moved=101)) == REPORT_SECONDS


@pytest.mark.parametrize(
    ("world_size", "least", "most"),
    [(1_024, 1.0, 2.5), (16_384, 1.0, 2.5), (32_768, 2.0, 2.5), (49_152, 3.0, 3.75), (100_000, 5.0, 5.0)],
)
def test_ranks_of_the_largest_jobs_report_less_often(world_size: int, least: float, most: float) -> None:
    cadence = Cadence(STALL, 5.0, world_size)
    assert set(steady(cadence, 100)) == {REPORT_SECONDS}, "the collector allows no more"
    cadence = Cadence(STALL, 5.0, world_size)
    cadence.most = 5.0
    intervals = steady(cadence, 100)
    assert (intervals[0], intervals[-1]) == (least, most)


def test_a_rank_that_is_no_witness_reports_its_wait_when_its_next_report_is_due() -> None:
    cadence = Cadence(STALL, 5.0, 16_384)
    cadence.most = 5.0
    assert steady(cadence, 100)[-1] == 2.5
    waits = at(103, moved=100, oldest=7, issued=100)
    assert cadence.interval(replace(waits, is_witness=False)) == 2.5
    assert cadence.interval(waits) == 0.25


@given(st.integers(1, 100_000))
def test_each_group_of_a_large_job_has_a_few_witnesses(size: int) -> None:
    assert sum(is_one(place, size) for place in range(size)) == min(size, WITNESSES)
    assert is_one(0, size)


def test_the_witnesses_of_a_group_are_spread_over_it() -> None:
    found = [place for place in range(10_000) if is_one(place, 10_000)]
    assert {b - a for a, b in itertools.pairwise(found)} == {1_250}


def test_a_collector_that_goes_away_takes_its_word_with_it() -> None:
    cadence = Cadence(STALL, 5.0, 8)
    cadence.most = 5.0
    assert steady(cadence, 100)[-1] == 2.5
    cadence.most = REPORT_SECONDS
    assert cadence.interval(at(100, moved=100)) == REPORT_SECONDS


def test_one_stall_is_reported_once_and_the_next_one_again() -> None:
    episodes = Episodes()
    results = [episodes.new_stall(at(t, oldest=7, issued=0), STALL) for t in (3, 4, 5, 60)]
    results += [episodes.new_stall(at(t, oldest=9, issued=60), STALL) for t in (61, 64, 65)]
    assert results == [None, 7, None, None, None, 9, None]


def test_one_idle_time_is_reported_once_and_the_next_one_again() -> None:
    episodes = Episodes()
    results = [episodes.new_idle(at(t, moved=0), STALL) for t in (3, 4, 5)]
    results += [episodes.new_idle(at(t, moved=6), STALL) for t in (7, 10, 11)]
    assert results == [False, True, False, False, True, False]


def test_a_file_of_a_fault_is_replaced_once_the_rank_has_moved_again_for_a_second() -> None:
    recovery = Recovery()
    recovery.note_file(moved_ns=0, of_fault=True)
    over = [recovery.is_over(at(t, moved=0, oldest=7), STALL) for t in (5, 60)]
    over += [recovery.is_over(at(t, moved=t), STALL) for t in (61, 61.5, 62)]
    assert over == [False, False, False, False, True]
    assert recovery.is_pending
    recovery.note_file(moved_ns=int(62e9), of_fault=False)
    assert not recovery.is_pending
    assert not recovery.is_over(at(70, moved=69), STALL)


def test_a_file_is_of_the_fault_in_which_the_rank_is_until_it_moves() -> None:
    recovery = Recovery()
    assert not recovery.is_of(0)
    recovery.note_file(moved_ns=5, of_fault=True)
    assert recovery.is_of(5)
    assert not recovery.is_of(6)
    recovery.note_file(moved_ns=6, of_fault=False)
    assert not recovery.is_of(6)


def test_a_file_that_is_requested_during_a_fault_is_replaced_once_the_fault_is_over() -> None:
    recovery = Recovery()
    for of_fault in (True, False):
        recovery.note_file(moved_ns=0, of_fault=of_fault)
    assert [recovery.is_over(at(t, moved=t), STALL) for t in (10, 11)] == [False, True]


def test_a_file_of_a_fault_stays_while_another_call_is_stalled() -> None:
    recovery = Recovery()
    recovery.note_file(moved_ns=0, of_fault=True)
    assert not recovery.is_over(at(10, moved=8, oldest=9, issued=8), STALL)
    assert not recovery.is_over(at(12, moved=8, oldest=9, issued=8), STALL)
    assert recovery.is_over(at(13, moved=12.5), STALL)


def test_a_program_that_catches_failures_again_and_again_gets_few_files_for_that() -> None:
    recovery = Recovery()
    written = []
    for tenth in range(1000):
        now = tenth / 10
        if tenth % 20 == 0:
            recovery.note_file(moved_ns=int(now * 1e9), of_fault=True)
        if recovery.is_over(at(now, moved=now), STALL):
            recovery.note_file(moved_ns=int(now * 1e9), of_fault=False)
            written.append(now)
    assert 3 <= len(written) <= 4
