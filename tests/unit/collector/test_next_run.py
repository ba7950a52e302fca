"""A run whose processes were in another one before: a rank that has not come to it is known from there."""

from __future__ import annotations

from typing import Any

import pytest
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.runs import Runs

from otel_fr import semconv
from otel_fr.match import Ending, Place
from tests.support.played_job import Job
from tests.support.told import run_in
from tests.support.virtual_collector import VirtualCollector

PLACE = "/job/train.py:12 load_checkpoint"
ERROR = {"type": "ValueError", "message": "bad checkpoint", "site": PLACE}


def begun_anew(collector: VirtualCollector, missing: int) -> list[dict[str, Any]]:
    """Play the next job of the name, to which a rank does not come. Return the causes of its run."""
    with collector.job(3) as new:
        new.ranks[missing].silent = True
        for rank in {0, 1, 2} - {missing}:
            new.ranks[rank].pid += 500
            new.ranks[rank].issue(new.world)
        collector.time.advance(20.0)
        return [one for one in collector.causes() if one["run_id"] == new.run]


def leave(job: Job, ranks: list[int]) -> None:
    """They destroy their groups; their processes continue."""
    for rank in ranks:
        job.ranks[rank].ended = True
        job.ranks[rank].send_report(semconv.EVENT_EXITED, exit={"clean": True, "known": False})


@pytest.mark.parametrize(
    ("exit_", "category", "is_in_next"),
    [
        (None, "missing_rank", True),
        ({"clean": True}, "missing_rank", True),
        ({"code": 1, "exception": ERROR}, "rank_dead", False),
        ({"signal": 9}, "rank_dead", False),
    ],
    ids=["hangs", "ends", "raises", "is killed"],
)
def test_a_rank_that_does_not_come_to_the_next_run_is_named_once(
    exit_: dict[str, Any] | None, category: str, is_in_next: bool
) -> None:
    """A failed rank is named in the run before, or in the next run if the others had waited there first."""
    with VirtualCollector() as collector, collector.job(3) as old:
        old.step()
        old.all_reported()
        leave(old, [0, 1])
        old.ranks[2].extra["site"] = PLACE
        with collector.job(3) as new:
            new.ranks[2].silent = True
            for rank in (0, 1):
                new.ranks[rank].issue(new.world)
            if exit_ is not None:
                old.ranks[2].exit(**exit_)
            collector.wait_cause()
            collector.time.advance(60.0)
            (found,) = collector.causes()
    assert (found["category"], found["culprit_ranks"], found["state"]) == (category, [2], "firing")
    assert found["run_id"] == new.run or not is_in_next
    assert found["call_sites"]["2"] == PLACE or not is_in_next


@pytest.mark.parametrize("shift", [0, 1], ids=["same ranks", "other ranks"])
def test_a_rank_that_fails_before_its_launcher_ends_the_others_is_one_incident(shift: int) -> None:
    """They wait for it in the next run, in which they may have other ranks; the job does not continue there."""
    with VirtualCollector() as collector, collector.job(3) as old:
        old.step()
        old.all_reported()
        leave(old, [0, 1])
        with collector.job(3) as new:
            *here, absent = [new.ranks[(process + shift) % 3] for process in range(3)]
            for before, one in zip(old.ranks, (*here, absent), strict=True):
                one.pid = before.pid
            absent.silent = True
            for one in here:
                one.issue(new.world)
            old.ranks[2].exit(code=1, exception=ERROR)
            collector.wait_cause()
            for one in here:
                one.exit(signal=15)
            collector.time.advance(70.0)
            (found,) = collector.causes()
    named = [2 if found["run_id"] == old.run else absent.rank]  # where the machine is busy, the wait may be told first
    assert (found["category"], found["culprit_ranks"], found["resolution"]) == ("rank_dead", named, "ended")


def test_a_rank_that_hangs_and_then_fails_is_one_incident() -> None:
    with VirtualCollector() as collector, collector.job(3) as old:
        old.step()
        old.all_reported()
        leave(old, [0, 1])
        with collector.job(3) as new:
            new.ranks[2].silent = True
            for rank in (0, 1):
                new.ranks[rank].issue(new.world)
            first = collector.wait_cause()
            old.ranks[2].exit(code=1, exception=ERROR)
            collector.time.advance(20.0)
            (found,) = collector.causes()
    assert (first["category"], found["category"], found["id"]) == ("missing_rank", "rank_dead", first["id"])


def test_after_a_restart_of_the_collector_the_next_run_may_be_heard_first() -> None:
    with VirtualCollector() as collector, collector.job(3) as new:
        new.ranks[2].silent = True
        for rank in (0, 1):
            new.ranks[rank].issue(new.world)
        collector.time.advance(0.2)
        with collector.job(3) as old:
            old.ranks[0].silent = old.ranks[1].silent = True
            old.ranks[2].extra["site"] = PLACE
            found = collector.wait_cause()
    assert (found["run_id"], found["culprit_ranks"], found["call_sites"]["2"]) == (new.run, [2], PLACE)


def test_a_rank_that_is_on_its_way_to_the_next_run_is_not_known_from_the_one_before() -> None:
    with VirtualCollector() as collector, collector.job(3) as old:
        old.step()
        old.all_reported()
        leave(old, [0, 1, 2])
        with collector.job(3) as new:
            new.ranks[2].silent = True
            for rank in (0, 1):
                new.ranks[rank].issue(new.world)
            found = collector.wait_cause()
    assert (found["run_id"], found["culprit_ranks"]) == (new.run, [2])
    assert "2" not in found["call_sites"]


def test_the_monitor_of_a_rank_that_has_not_come_is_asked_in_the_run_before_whatever_its_rank_there() -> None:
    with VirtualCollector() as collector, collector.job(3) as old:
        old.step()
        old.all_reported()
        leave(old, [0, 2])
        collector.watch(old, 0)  # has come to the new run
        monitor = collector.watch(old, 1)
        with collector.job(3) as new:
            for process, rank in ((0, 0), (2, 1)):
                new.ranks[rank].pid = old.ranks[process].pid
                new.ranks[rank].issue(new.world)
            new.ranks[2].silent = True
            found = collector.wait_cause()
            dump, inspect = monitor.next_command().dump, monitor.next_command().inspect
    assert (found["run_id"], found["culprit_ranks"]) == (new.run, [2])
    assert (dump.incident_id, dump.reason) == ("", found["summary"]), "the other run's monitors log it"
    assert (inspect.incident_id, list(inspect.ranks)) == (found["id"], [1])


@pytest.mark.parametrize("is_told", [True, False], ids=["its ranks have ended", "nothing is heard any more"])
def test_a_job_that_is_started_anew_under_its_name_knows_nothing_of_the_one_before(is_told: bool) -> None:
    """A rank that never came was blamed for what had ended the earlier job."""
    with VirtualCollector() as collector, collector.job(3) as old:
        old.step()
        old.all_reported()
        for one in old.ranks:
            one.silent = not is_told
            if is_told:
                one.exit(signal=15)
        collector.time.advance(100.0)
        (found,) = begun_anew(collector, missing=2)
    assert (found["category"], found["culprit_ranks"]) == ("missing_rank", [2])
    assert "has sent no report" in found["summary"]


def test_a_rank_that_never_came_is_told_of_although_one_was_missed_in_the_job_before() -> None:
    """The places of both are not known, so they were taken for the same process until the first incident was over."""
    with VirtualCollector() as collector, collector.job(3) as old:
        old.ranks[2].silent = True
        for rank in (0, 1):
            old.ranks[rank].issue(old.world)
        collector.wait_cause()
        for one in old.ranks:
            one.silent = True
        collector.time.advance(60.0)
        found = [one["culprit_ranks"] for one in begun_anew(collector, missing=1)]
    assert found == [[1]]


@pytest.mark.parametrize("is_stored", [True, False])
def test_of_a_run_from_before_a_restart_not_all_processes_are_known(is_stored: bool) -> None:
    runs = Runs()
    old = run_in(runs, "old")
    if is_stored:
        old.restore(2, {}, [RankState(1, ending=Ending.KILLED, ended=-5.0, place=Place("h", 11))])
    new = run_in(runs, "new", 1.0)
    new.note_origin(0, place=Place("h", 10), world_size=2, resource={}, now=1.0)
    assert runs.before(new) is old
