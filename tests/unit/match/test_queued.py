"""Calls that a rank has enqueued and its device has not begun, while the devices of others wait in them."""

from __future__ import annotations

from dataclasses import replace
from signal import SIGABRT, SIGTERM

import pytest

from otel_fr.match import Call, CallState, Category, Ending, Finding, Group, Rank
from tests.support.evidence import LONG, WINDOW, call, rank, verdict, world
from tests.support.verdicts import causes

WORLD = world(4)
LEFT, RIGHT = Group("l", "1", "tp", (0, 1)), Group("r", "2", "dp", (0, 1))


def begun(rank: int, number: int = 7, group: Group = WORLD, record: int = 70, age: float = LONG) -> Call:
    return call(rank, number, group=group, record=record, age=age)


def queued(rank: int, number: int = 7, group: Group = WORLD, record: int = 70) -> Call:
    return replace(begun(rank, number, group, record), queued=True)


def found_of(*calls: Call, ranks: dict[int, Rank] | None = None) -> list[Finding]:
    known = {r: rank(r, 7, 6) for r in range(4)} | (ranks or {})
    return verdict(calls, known.values(), LEFT, RIGHT, size=4)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param((queued(0), queued(1), queued(2), queued(3)), id="no device waits: all may compute"),
        pytest.param((begun(0, age=0.5), begun(1, age=0.5), begun(2, age=0.5), queued(3)), id="for a short time only"),
    ],
)
def test_devices_that_have_not_begun_a_call_are_no_fault_while_no_other_waits_for_them(calls: tuple[Call, ...]) -> None:
    assert found_of(*calls) == []


def test_a_device_whose_rank_still_moves_may_begin_it() -> None:
    assert found_of(begun(0), begun(1), begun(2), queued(3), ranks={3: rank(3, 7, 6, idle=0.5)}) == []
    other = begun(3, 40, LEFT, record=60, age=WINDOW / 2)  # its device has just begun an earlier call
    assert found_of(begun(0), begun(1), begun(2), queued(3), other) == []


def test_a_rank_that_has_not_come_is_named_before_one_whose_device_is_late() -> None:
    (found,) = found_of(begun(0), begun(1), queued(3), ranks={2: rank(2, 6)})
    assert (found.category, found.culprit_ranks, found.stuck_on) == (Category.MISSING_RANK, (2,), "host")


def test_a_device_that_waits_in_an_earlier_call_passes_the_wait_on() -> None:
    """Rank 1's device is in a collective of the pair, which rank 0 has not joined; ranks 2 and 3 wait for rank 1's."""
    pair = begun(1, 20, LEFT, record=60)
    ranks = {0: rank(0, 7, 6, counts={"l": (19, 19)}), 1: rank(1, 7, 6, counts={"l": (20, 19)})}
    found = found_of(pair, begun(0), queued(1), begun(2), begun(3), ranks=ranks)
    (cause,) = causes(found)
    # Rank 0's device waits for rank 1's, which waits for rank 0.
    assert (cause.category, cause.culprit_ranks) == (Category.DEADLOCK, (0, 1))
    ranks[0].idle = LONG
    (cause,) = causes(found_of(pair, queued(1), begun(2), begun(3), ranks=ranks))
    assert (cause.category, cause.culprit_ranks, cause.sequence_id) == (Category.MISSING_RANK, (0,), 20)


def test_one_device_is_one_fault_in_all_its_groups() -> None:
    ranks = {r: rank(r, 7, 6, counts={"l": (20, 19)}) for r in (0, 1)}
    calls = [begun(0, 20, LEFT, record=60), queued(1, 20, LEFT, record=60), queued(1), begun(2), begun(3)]
    found = found_of(*calls, queued(0), ranks=ranks)
    (cause,) = causes(found)
    assert (cause.category, cause.culprit_ranks, cause.group) == (Category.RANK_STUCK, (1,), LEFT)
    assert [(item.group, item.waiting_ranks) for item in found if item.caused_by == cause.key] == [(WORLD, (2, 3))]


def test_it_stays_the_verdict_when_the_watchdogs_have_aborted_all() -> None:
    ended = {
        number: rank(number, 7, 6, ending=Ending.KILLED, signal=SIGABRT, idle=None, ended_for=0.0)
        for number in range(4)
    }
    (cause,) = causes(found_of(begun(0), begun(1), begun(2), queued(3), ranks=ended))
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.RANK_STUCK, (3,), "device")
    gave_up = [
        replace(call, state=CallState.FAILED, duration=600.0, timeout=600.0, error="timeout")
        for call in (begun(0), begun(1), begun(2), queued(3))
    ]
    (cause,) = causes(found_of(*gave_up, ranks=ended))
    assert (cause.category, cause.culprit_ranks, cause.stuck_on) == (Category.RANK_STUCK, (3,), "device")


def test_it_stays_the_verdict_when_whoever_stops_the_job_has_ended_the_others() -> None:
    stopped = {r: rank(r, 7, 6, ending=Ending.KILLED, signal=SIGTERM) for r in (0, 1)}
    (found,) = causes(found_of(begun(0), begun(1), begun(2), queued(3), ranks=stopped))
    assert (found.category, found.culprit_ranks) == (Category.RANK_STUCK, (3,))


def test_nothing_is_known_of_the_device_of_a_rank_that_has_fallen_silent() -> None:
    silent = rank(3, 7, 6, ending=Ending.UNKNOWN)
    found = found_of(begun(0), begun(1), begun(2), queued(3), ranks={3: silent})
    assert not any(3 in one.culprit_ranks for one in found)


def test_a_rank_that_was_aborted_soon_ended_by_itself() -> None:
    ended = rank(3, 7, 6, ending=Ending.KILLED, signal=SIGABRT, idle=None, ended_for=9.0)
    soon = replace(queued(3), age=WINDOW / 2)
    (cause,) = causes(found_of(begun(0), begun(1), begun(2), soon, ranks={3: ended}))
    assert (cause.category, cause.culprit_ranks) == (Category.RANK_DEAD, (3,))
