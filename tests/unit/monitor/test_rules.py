"""When a rank counts as stalled or idle, and how often it is reported."""

from __future__ import annotations

import pytest

from otel_fr.monitor.rules import Episodes, Recovery, Situation, is_idle, report_interval, stalled_call

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
