"""A wait is believed while somebody tells of it: not if all who could have fallen silent before it was long."""

from __future__ import annotations

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.incidents.credibility import is_credible
from otel_fr_collector.incidents.triggers import Triggers
from otel_fr_collector.jobs.snapshot import snapshot

from otel_fr.rank_report import RankReport
from tests.support.evidence import finding
from tests.support.told import new_run, rank_in

ENQUEUED, STALL = 100.0, 5.0
NOW = ENQUEUED + 60.0
SHORT, LONG = ENQUEUED + 1.0, ENQUEUED + STALL
"""When a rank reported last: before its peers had waited for long, and after that."""
MISSING = finding()


@pytest.mark.parametrize(
    ("last_reports", "is_believed"),
    [
        ({0: SHORT, 1: SHORT, 2: SHORT}, False),  # the collector was cut off from a job that may go on
        ({0: LONG, 1: LONG, 2: LONG}, True),  # it was cut off from a job that hung
        ({0: NOW, 1: SHORT, 2: SHORT}, True),  # a rank tells that it waits for one that is silent
        ({0: SHORT, 1: NOW, 2: SHORT}, True),  # the rank that they wait for has not come
        ({0: LONG, 1: SHORT, 2: SHORT}, True),
    ],
)
def test_a_wait_of_which_nobody_has_told_is_not_believed(last_reports: dict[int, float], is_believed: bool) -> None:
    run = new_run("r0", world_size=3)
    for rank, moment in last_reports.items():
        state = rank_in(run, rank)
        state.report, state.arrived = RankReport(rank, 1, (), STALL, idle_s=0.1), moment
        assert state.is_silent(NOW) == (NOW - moment > timeline.SILENCE)
    taken = snapshot(run, NOW)
    taken.enqueued_at["w", "collective", 5] = ENQUEUED
    assert is_credible(run, taken, MISSING, Triggers(stalled=True)) == is_believed


@pytest.mark.parametrize(
    ("arrived", "idle", "enqueued", "is_believed"),
    [
        (LONG, LONG - ENQUEUED + 1, 4, True),
        (SHORT + 1, 60.0, 4, False),  # before the wait was long
        (LONG, 0.5, 4, False),  # it has moved
        (LONG, 60.0, 5, False),  # it has come
    ],
)
def test_a_report_that_arrived_while_the_run_was_judged_counts_if_it_says_the_same(
    arrived: float, idle: float, enqueued: int, is_believed: bool
) -> None:
    run = new_run("r0", world_size=3)
    for rank in range(3):
        state = rank_in(run, rank)
        state.report = RankReport(rank, 1, (), STALL, idle_s=0.1, interval_s=5.0)
        state.arrived, state.progress["w"] = (SHORT if rank == 1 else LONG - 0.5), [4 + (rank != 1), 4, 1, 0, 4]
    taken = snapshot(run, LONG - 0.5)
    taken.enqueued_at["w", "collective", 5] = ENQUEUED
    assert not is_credible(run, taken, MISSING, Triggers(stalled=True))
    late = run.ranks[1]
    late.report, late.arrived = RankReport(1, 2, (), STALL, idle_s=idle, interval_s=5.0), arrived
    late.progress["w"][0] = enqueued
    assert is_credible(run, taken, MISSING, Triggers(stalled=True)) == is_believed
