"""Ranks whose heartbeat or section is overdue: when that is the cause, an explanation, or nothing of their own."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

import pytest

from otel_fr.match import Call, Category, Ending, Overdue, Rank
from otel_fr.match.facts.ranks import is_excused, reported, reported_within
from otel_fr.rank_report import ReportedActivity
from tests.support.evidence import WORLD, call, judge
from tests.support.verdicts import causes
from tests.unit.match.test_whereabouts import PP, TP, alive, waiting

LOAD = Overdue("section", "loading", 12.0, 2.0)
SAVE = Overdue("section", "saving", 5.0, 3.0)
BEAT = Overdue("heartbeat", "", 70.0, 60.0)
OUTSIDE = Overdue("outside", "", 70.0, 60.0)
GROUPS = (WORLD, TP, PP)


def overdue(rank: Rank, *items: Overdue, **changes: object) -> Rank:
    rank.overdue = items
    for name, value in changes.items():
        setattr(rank, name, value)
    return rank


def waiters(*ranks: int) -> list[Rank]:
    return [waiting(rank, 5) for rank in ranks]


def in_it(*ranks: int) -> list[Call]:
    return [call(rank) for rank in ranks]


def test_a_rank_that_waits_is_no_cause_however_long_its_section_lasts() -> None:
    ranks = [overdue(rank, LOAD, BEAT) for rank in waiters(0, 2)]
    (cause,) = causes(judge(in_it(0, 2), [*ranks, alive(1, w=4)], GROUPS, 3))
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (1,))
    assert judge([call(0, age=0.2)], [overdue(waiting(0, 5), LOAD), alive(1, w=5), alive(2, w=5)], GROUPS, 3) == []


@pytest.mark.parametrize("number", [SIGTERM, SIGKILL])
def test_a_rank_that_its_monitor_ended_was_overdue_not_dead(number: int) -> None:
    rank = overdue(alive(1, w=4), LOAD, ending=Ending.KILLED, signal=int(number), ended_by_monitor=True)
    others = [overdue(one) for one in waiters(0, 2)]
    (cause,) = causes(judge(in_it(0, 2), [*others, rank], GROUPS, 3))
    assert (cause.category, cause.culprit_ranks) == (Category.SECTION_OVERRUN, (1,))
    (alone,) = causes(judge([], [alive(0, w=4), rank, alive(2, w=4)], GROUPS, 3))
    assert (alone.category, alone.culprit_ranks) == (Category.SECTION_OVERRUN, (1,))


@pytest.mark.parametrize("ended", [(0, 2), (0,)], ids=["all", "the first"])
def test_a_victim_that_its_monitor_ended_is_no_cause(ended: tuple[int, ...]) -> None:
    ranks = waiters(0, 2)
    for rank in ranks:
        if rank.rank in ended:
            overdue(rank, LOAD, ending=Ending.KILLED, signal=int(SIGTERM), ended_by_monitor=True)
    (cause,) = causes(judge(in_it(0, 2), [*ranks, alive(1, w=4)], GROUPS, 3))
    assert (cause.category, cause.culprit_ranks) == (Category.MISSING_RANK, (1,))


def test_it_follows_from_a_cause_that_is_known() -> None:
    dead = Rank(2, ending=Ending.KILLED, signal=9, progress=alive(2, w=4).progress)
    found = judge([], [alive(0, w=4), overdue(alive(1, w=4), BEAT), dead], GROUPS, 3)
    assert [(one.category, one.caused_by is None) for one in found] == [
        (Category.RANK_DEAD, True),
        (Category.HEARTBEAT_MISSED, False),
    ]


def test_the_innermost_section_is_named() -> None:
    rank = overdue(alive(1, w=4), BEAT, LOAD, SAVE)
    (cause,) = judge([], [alive(0, w=4), rank], GROUPS, 3)
    assert cause.values == {1: "section saving, limit 3.0 s"}


def test_only_what_is_overdue_and_complete_is_read_of_a_report() -> None:
    items = [
        ReportedActivity("section", "a", 5.0, 2.0, True),
        ReportedActivity("section", "b", 1.0, 2.0, False),
        ReportedActivity("section", "c", None, 2.0, True),
        ReportedActivity("heartbeat", "", 5.0, None, True),
        ReportedActivity("made up", "d", 5.0, 2.0, True),
    ]
    assert reported(items) == (Overdue("section", "a", 5.0, 2.0),)


def test_the_section_that_may_last_longest_excuses_and_nothing_does_beside_what_is_overdue() -> None:
    short, long = ReportedActivity("section", "a", 1.0, 2.0), ReportedActivity("section", "b", 1.0, 9.0)
    beat, endless = ReportedActivity("heartbeat", "", 1.0, 60.0), ReportedActivity("section", "c", 1.0, None)
    assert reported_within([beat, endless]) is None
    assert reported_within([endless, short, long]) == Overdue("section", "b", 1.0, 9.0)
    assert reported_within([long, ReportedActivity("section", "d", 3.0, 2.0, True)]) is None


def within(rank: Rank) -> Rank:
    rank.within = Overdue("section", "saving", 5.0, 300.0)
    return rank


def test_a_wait_for_a_rank_within_the_limit_of_its_section_is_no_fault_so_far() -> None:
    (cause,) = judge(in_it(0, 2), [*waiters(0, 2), within(alive(1, w=4))], GROUPS, 3)
    assert (cause.category, cause.culprit_ranks, cause.is_excused) == (Category.MISSING_RANK, (1,), True)
    assert "saving" in cause.text
    (stuck,) = judge(in_it(0, 2), [*waiters(0, 2), overdue(within(alive(1, w=4)), python_blocked=True)], GROUPS, 3)
    assert (stuck.category, stuck.is_excused) == (Category.RANK_STUCK, True)


def test_a_section_excuses_neither_another_rank_nor_one_that_has_ended_or_let_its_peers_time_out() -> None:
    apart = judge(in_it(0), [*waiters(0), within(alive(1, w=4)), alive(2, w=4)], GROUPS, 3)
    assert [(one.culprit_ranks, one.is_excused, one.caused_by) for one in apart] == [
        ((2,), False, None),
        ((1,), True, None),
    ]
    dead = overdue(within(alive(1, w=4)), ending=Ending.KILLED, signal=9)
    assert not is_excused(dead)
    assert [one.is_excused for one in judge(in_it(0, 2), [*waiters(0, 2), dead], GROUPS, 3)] == [False]
    aborted = [overdue(rank, ending=Ending.KILLED, signal=6) for rank in waiters(0, 2)]
    (late,) = causes(judge(in_it(0, 2), [*aborted, within(alive(1, w=4))], GROUPS, 3))
    assert (late.culprit_ranks, late.is_excused) == ((1,), False)


def test_a_rank_that_others_wait_for_is_named_apart_from_one_whose_section_is_overdue() -> None:
    apart = judge(in_it(0), [*waiters(0), overdue(alive(1, w=4), LOAD), alive(2, w=4)], GROUPS, 3)
    named = [(one.category, one.culprit_ranks, one.caused_by) for one in apart]
    assert named == [(Category.MISSING_RANK, (2,), None), (Category.SECTION_OVERRUN, (1,), None)]
    assert len({one.key for one in apart}) == 2
