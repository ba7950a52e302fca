"""What a collector that has just started makes of jobs it does not know, by a clock of the test's own."""

from __future__ import annotations

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.return_grace import MAX_FIRST_REPORT_NUMBER, ReturnGrace
from otel_fr_collector.jobs.run import Run, RunId

from otel_fr.match import Category, Place
from otel_fr.rank_report import RankReport, ReportedExit
from tests.support.evidence import NO_CALL, finding
from tests.support.told import apply, rank_in

RUN = RunId("job-7", 0, "r")


def add_reports(run: Run, *ranks: int, number: int) -> None:
    for rank in ranks:
        state = rank_in(run, rank)
        state.report = RankReport(rank, number, ())


def make(world: int | None = 3) -> Run:
    return Run(RUN, 0.0, 0.0, world_size=world)


def test_a_job_that_was_running_before_is_not_judged_until_all_its_ranks_are_back() -> None:
    grace, run = ReturnGrace(0.0), make()
    add_reports(run, 0, 1, number=MAX_FIRST_REPORT_NUMBER + 1)
    assert grace.waits_for(run, 1.0)
    add_reports(run, 2, number=MAX_FIRST_REPORT_NUMBER + 2)
    assert not grace.waits_for(run, 2.0)
    run.ranks[2].report = None
    assert not grace.waits_for(run, 3.0)  # once is enough: from then on silence is silence


def test_the_wait_for_ranks_that_do_not_reconnect_is_bounded() -> None:
    grace, run = ReturnGrace(0.0), make()
    add_reports(run, 0, number=100)
    assert grace.waits_for(run, 10.0)
    assert grace.waits_for(run, 10.0 + timeline.RECONNECT_SECONDS - 0.1)
    assert not grace.waits_for(run, 10.0 + timeline.RECONNECT_SECONDS)


def test_a_rank_that_reports_in_the_run_before_is_not_waited_for() -> None:
    """After a restart, others wait in the next run for a rank that does not come to it."""
    before, run = Run(RunId("job-7", 0, "before"), 0.0, 0.0, world_size=3), make()
    grace = ReturnGrace(0.0, before=lambda _: before)
    for one, rank, pid in ((run, 0, 10), (run, 1, 12), (before, 2, 12)):
        add_reports(one, rank, number=MAX_FIRST_REPORT_NUMBER + 1)
        one.ranks[rank].place = Place("n0", pid)
    assert grace.waits_for(run, 1.0), "process 12 has come, with another rank"
    add_reports(before, 1, number=100)
    before.ranks[1].place = Place("n0", 11)
    before.ranks[1].ended = 1.5
    assert grace.waits_for(run, 2.0), "process 11 has ended; the one that takes its place is not back"
    before.ranks[1].ended = None
    assert not grace.waits_for(run, 2.0)


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    grace, run = ReturnGrace(0.0), make()
    add_reports(run, 0, 1, number=100)
    state = rank_in(run, 2)
    state.ended = 0.5
    assert not grace.waits_for(run, 1.0)


@pytest.mark.parametrize(("started", "number"), [(0.0, MAX_FIRST_REPORT_NUMBER), (-timeline.RETURN_SECONDS - 1.0, 100)])
def test_a_job_that_begins_later_is_judged_at_once(started: float, number: int) -> None:
    grace, run = ReturnGrace(started), make()
    add_reports(run, 0, number=number)
    assert not grace.waits_for(run, 1.0)


def test_an_expected_run_is_waited_for_before_its_first_report_for_a_bounded_time() -> None:
    grace, run = ReturnGrace(0.0), make(None)
    grace.add(run)
    assert grace.waits_for(run, timeline.RETURN_SECONDS)
    grace.expire(timeline.RETURN_SECONDS + timeline.RECONNECT_SECONDS + 1.0, {RUN})
    assert not grace.waits_for(run, timeline.RETURN_SECONDS + timeline.RECONNECT_SECONDS + 2.0)


def test_old_resolved_incidents_leave_memory_and_open_ones_stay() -> None:
    wall = [1_000.0]
    book = IncidentBook(lambda: wall[0])
    found = finding(Category.RANK_DEAD, **NO_CALL)
    for attempt in range(2):
        run = Run(RunId("job", attempt, f"r{attempt}"), 0.0, 0.0)
        book.update(run, [found], now=0.0, wall=wall[0], enqueued={}, over=())
    book.resolve_run(RunId("job", 0, "r0"), 0.0)
    book.drop_old(900.0)
    assert len(book.known()) == 2
    book.drop_old(1_001.0)
    assert [incident.run.run for incident in book.known()] == ["r1"]


def test_runs_that_are_gone_are_forgotten() -> None:
    """A client that makes up a job with each request would fill the memory."""
    grace = ReturnGrace(0.0)
    for number in range(1_000):
        run = Run(RunId(f"invented-{number}", 0, "r"), 0.0, 0.0, world_size=3)
        add_reports(run, 0, number=100)
        assert grace.waits_for(run, 1.0)
    run = make()
    add_reports(run, 0, number=100)
    assert grace.waits_for(run, 1.0)
    grace.expire(2.0, {RUN})
    assert (grace._checked, set(grace._until)) == ({RUN}, {RUN})
    assert grace.waits_for(run, 3.0)


def report(run: Run, rank: int, at: float, *, ends: bool = False) -> None:
    """A report of a rank that sends one every 2.5 s."""
    number = int(at * 10)
    assert apply(run, rank, number, at, interval_s=2.5, exit=ReportedExit(1) if ends else None)


def test_that_only_lost_ranks_are_left_is_no_outage() -> None:
    """Ranks 2 and 3 are not heard of after 10 s; the others raise, and end after a pause without reports."""
    grace, run = ReturnGrace(-timeline.RETURN_SECONDS - 1.0), make(4)
    for rank in range(4):
        report(run, rank, 10.0)
    for at, ends in ((12.0, False), (14.3, True)):
        report(run, 0, at, ends=ends)
        report(run, 1, at, ends=ends)
    assert not grace.waits_for(run, 14.4)


def test_an_outage_in_which_a_rank_has_ended_is_one() -> None:
    grace, run = ReturnGrace(-timeline.RETURN_SECONDS - 1.0), make(2)
    for rank in (0, 1):
        report(run, rank, 10.0)
    report(run, 0, 20.0, ends=True)
    assert grace.waits_for(run, 20.1)
    report(run, 1, 21.0)
    assert not grace.waits_for(run, 21.1)
