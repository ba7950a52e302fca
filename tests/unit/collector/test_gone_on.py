"""Ranks that went on in a new group, without one that had failed: the run that they left is over."""

from __future__ import annotations

import itertools
import time

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.incidents.resolution import Resolution
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.service import Service

from otel_fr.match import Ending, Place
from otel_fr.rank_report import RankReport
from tests.support.evidence import NO_CALL, finding
from tests.support.services import Clock, new_service
from tests.support.told import rank_in, run_in


def begin(service: Service, name: str, pids: list[int], now: float) -> Run:
    run = run_in(service.runs, name, now)
    for rank, pid in enumerate(pids):
        state = rank_in(run, rank)
        state.place, state.report, state.arrived = Place("host", pid=pid), RankReport(rank, 1, (), idle_s=0.1), now
    return run


@pytest.mark.parametrize(
    ("newer", "is_over"),
    [
        ([10, 12], True),  # all but the culprit
        ([10, 11, 12], True),  # all of them
        ([10], False),  # rank 2 is left behind, too
        ([20, 21, 22], False),  # other processes
        ([], False),
    ],
)
def test_a_run_is_over_once_all_that_its_incidents_do_not_accuse_have_gone_on(newer: list[int], is_over: bool) -> None:
    clock = Clock()
    service = new_service(clock)
    old = begin(service, "old", [10, 11, 12], clock.now)
    found = finding(**NO_CALL)
    service.book.update(old, [found], now=clock.now, wall=1e9, enqueued={}, over=())
    for rank in range(len(newer)):
        old.ranks[rank].ended, old.ranks[rank].ending = clock.now, Ending.CLEAN
    if newer:
        begin(service, "new", newer, clock.now + 1)
    old.ranks[2].ended = None
    clock.advance(2.0)
    service.step()
    assert old.is_replaced == is_over
    assert bool(service.book.open_of(old.id)) != is_over


def test_a_clean_up_that_takes_several_steps_reaches_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began with the same runs in each step, so that the others' incidents stayed open."""
    clock = Clock()
    service = new_service(clock)
    runs = [begin(service, f"{number}", [number], clock.now) for number in range(5)]
    for run in runs:
        service.book.update(run, [finding(**NO_CALL)], now=clock.now, wall=1e9, enqueued={}, over=())
    runs[-1].is_replaced = True
    seconds = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds) * 0.015)  # a step looks at one of them
    clock.advance(2.0)
    assert not service.step()
    for _ in range(10):
        service.step()
    assert service.book.runs() == [run.id for run in runs[:-1]]
    assert service._cleaned_at == clock.now


def test_an_incident_from_before_a_restart_has_not_ended_because_no_rank_is_heard() -> None:
    clock = Clock()
    before, after = new_service(clock), new_service(clock)
    old = begin(before, "old", [10, 11, 12], clock.now)
    (opened,) = before.book.update(old, [finding(**NO_CALL)], now=clock.now, wall=clock.wall, enqueued={}, over=())
    after.book.restore([opened.incident], clock.now, clock.wall)
    run_in(after.runs, "old", clock.now)  # the store has nothing about its ranks
    for seconds, why in ((2 * timeline.STOPPED_SECONDS, None), (timeline.UNHEARD_SECONDS, Resolution.UNHEARD)):
        clock.advance(seconds)
        after.step()
        assert after.book.known()[0].resolution is why


@pytest.mark.parametrize(("attempt", "is_over"), [(0, True), (3, False)])
def test_a_run_is_replaced_by_a_later_attempt_but_not_by_one_of_a_job_that_was_started_before(
    attempt: int, is_over: bool
) -> None:
    """The incident of a job that was started anew under its name was over as soon as its ranks had ended."""
    clock = Clock()
    service = new_service(clock)
    runs = []
    for number in (attempt, 3 - attempt):
        run = run_in(service.runs, f"{number}", clock.now, attempt=number)
        state = rank_in(run, 0)
        state.ended, state.ending, run.world_size = clock.now, Ending.RAISED, 1
        runs.append(run)
        clock.advance(60.0)
        run.last_seen = clock.now
    about = runs[0] if is_over else runs[1]
    service.book.update(about, [finding(**NO_CALL)], now=clock.now, wall=1e9, enqueued={}, over=())
    clock.advance(2.0)
    service.step()
    assert about.is_replaced == is_over
    assert service.book.known()[0].resolution is (Resolution.REPLACED if is_over else None)
