"""A job that its user ends: scancel, Ctrl-C, SIGTERM to the launcher. Its incidents end, and nobody is paged."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from otel_fr import semconv
from tests.support.notified_site import Site
from tests.support.played_job import Issued, Job

SECONDS = 5.0
"""Seconds from the last rank's end until the incidents have ended."""
CTRL_C = {"type": "KeyboardInterrupt", "message": ""}


def hang(site: Site, job: Job) -> list[Issued]:
    """Let ranks 0 and 2 wait for rank 1, but not long enough for a notification."""
    for _ in range(3):
        job.step()
    waiting = job.skip(1)
    assert site.collector.wait_cause()["culprit_ranks"] == [1]
    site.time.advance(5.0)
    return waiting


def cut_short(job: Job, waiting: list[Issued]) -> None:
    """Send the spans of calls in flight, as monitors do when their ranks end."""
    for call in waiting:
        call.error = "rank_exited"
        job.ranks[call.rank].send_spans([call.span(job.run, job.time.monotonic())])


@contextlib.contextmanager
def hung(site: Site) -> Iterator[tuple[Job, list[Issued]]]:
    """Yield a hung job, which the test stops. Then check that its incident has ended, and that nobody was notified."""
    with site.collector.job(3) as job:
        yield job, hang(site, job)
        site.time.advance(SECONDS)
        assert endings(site) == [("resolved", "stopped")]
        assert site.receiver.told == []


def endings(site: Site) -> list[tuple[str, str | None]]:
    return [(one["state"], one["resolution"]) for one in site.collector.incidents()]


@pytest.mark.parametrize(
    "way", ["SIGTERM", "SIGKILL", "one by one", "Ctrl-C", "sys.exit", "sys.exit(0)", "handled", "some end well"]
)
def test_an_incident_ends_with_a_job_that_was_stopped(site: Site, way: str) -> None:
    with site.collector.job(3) as job:
        waiting = hang(site, job)
        cut_short(job, waiting)
        for rank in job.ranks:
            if way == "Ctrl-C":
                rank.exit(code=1, exception=CTRL_C)
            elif way == "sys.exit":
                rank.exit(code=1, exit_message="while handling KeyboardInterrupt:")
            elif way == "sys.exit(0)":
                rank.exit(code=0, exit_message="while handling KeyboardInterrupt:")
            elif way == "handled":
                rank.exit(code=0, exit_message="while handling SIGINT")
            elif way == "some end well" and rank.rank == 0:
                rank.exit(code=0, clean=True)
            else:
                rank.exit(signal=signal.SIGKILL if way == "SIGKILL" else signal.SIGTERM)
            site.time.advance(1.0 if way == "one by one" else 0.2)
        site.time.advance(SECONDS)
        assert endings(site) == [("resolved", "stopped")]
        (found,) = site.jobs()
        assert (found["state"], found["incidents"]) == ("stopped", [])
        assert found["ranks"] == ({"ended": 1, "stopped": 2} if way == "some end well" else {"stopped": 3})
        site.time.advance(120.0)
        assert site.receiver.told == []


def test_the_calls_that_fail_as_ctrl_c_ends_the_first_rank_page_nobody(site: Site) -> None:
    with hung(site) as (job, waiting):
        for call in waiting:
            rank = job.ranks[call.rank]
            rank.fail(call, "collective_failed")
            rank.send_report(semconv.EVENT_EXCEPTION, exception=CTRL_C)
        job.ranks[1].send_report(semconv.EVENT_EXCEPTION, exception=CTRL_C)
        site.time.advance(SECONDS)
        for rank in job.ranks:
            rank.exit(signal=signal.SIGINT, exception=CTRL_C)


def test_a_rank_whose_call_fails_as_its_launcher_ends_one_after_the_other_was_stopped_too(site: Site) -> None:
    with hung(site) as (job, (_, second)):
        job.ranks[0].exit(signal=signal.SIGTERM)
        job.ranks[2].fail(second, "collective_failed")
        lost = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:1"
        job.ranks[2].exit(code=1, exception={"type": "RuntimeError", "message": lost})
        job.ranks[1].exit(signal=signal.SIGTERM)


@pytest.mark.parametrize("with_its_monitor", [False, True])
def test_a_rank_that_did_not_react_and_was_killed_later_was_stopped_too(site: Site, with_its_monitor: bool) -> None:
    with hung(site) as (job, waiting):
        cut_short(job, waiting)
        for rank in (0, 2):
            job.ranks[rank].exit(signal=signal.SIGTERM)
        site.time.advance(10.0)
        if with_its_monitor:
            job.ranks[1].silent = True
            site.time.advance(SECONDS)
        else:
            job.ranks[1].exit(signal=signal.SIGKILL)


def test_ranks_that_cannot_react_to_ctrl_c_were_stopped_too(site: Site) -> None:
    """Rank 1 does not run. Rank 2 reacts only when rank 0 is killed, because that ends its call."""
    with hung(site) as (job, (first, second)):
        job.ranks[1].extra |= {"python_blocked": True, "doing": "stopped by a signal (SIGSTOP)"}
        site.time.advance(10.0)
        cut_short(job, [first])
        job.ranks[0].exit(signal=signal.SIGKILL)
        site.time.advance(0.1)
        job.ranks[2].fail(second, "collective_failed")
        site.time.advance(1.5)
        job.ranks[1].exit(signal=signal.SIGKILL)
        job.ranks[2].exit(signal=signal.SIGINT, exception=CTRL_C)


def test_what_was_told_is_told_to_be_over(site: Site) -> None:
    with site.collector.job(3) as job:
        waiting = hang(site, job)
        site.time.advance(30.0)
        assert [kind for kind, _ in site.receiver.told] == ["opened"]
        cut_short(job, waiting)
        for rank in job.ranks:
            rank.exit(signal=signal.SIGTERM)
        site.time.advance(SECONDS)
        assert site.receiver.told[-1] == ("resolved", "missing_rank")


@pytest.mark.parametrize("fault", ["killed", "raised", "timed out", "ended by its monitor", "lost"])
def test_a_job_that_failed_is_no_stopped_one_although_its_launcher_ended_the_other_ranks(
    site: Site, fault: str
) -> None:
    with site.collector.job(3) as job:
        waiting = hang(site, job)
        if fault == "killed":
            job.ranks[1].exit(signal=signal.SIGSEGV)
        elif fault == "raised":
            job.ranks[1].exit(code=1, exception={"type": "ValueError", "message": "bad sample"})
        elif fault == "timed out":
            job.ranks[0].fail(waiting[0])
            job.ranks[0].exit(code=1, exception={"type": "RuntimeError", "message": "Timed out waiting 1000ms"})
            job.ranks[1].exit(signal=signal.SIGTERM)
        elif fault == "ended by its monitor":
            job.ranks[1].exit(signal=signal.SIGTERM, on_hang="kill")
        else:
            job.ranks[1].silent = True
            site.time.advance(10.0)
        for rank in job.ranks:
            if not rank.ended and not rank.silent:
                rank.exit(signal=signal.SIGTERM)
        site.time.advance(60.0)
        (cause,) = site.collector.causes()
        assert cause["culprit_ranks"] == [1]
        assert site.receiver.told[0][0] == "opened"
        is_lost = fault == "lost"
        assert (cause["state"], cause["resolution"]) == (("firing", None) if is_lost else ("resolved", "ended"))
        (found,) = site.jobs()
        assert found["state"] == ("incident" if is_lost else "failed")
        own = {"killed": "killed", "ended by its monitor": "killed", "lost": "silent"}.get(fault, "raised")
        others = {"raised": 1, "stopped": 2} if fault == "timed out" else {own: 1, "stopped": 2}
        assert found["ranks"] == others
        site.time.advance(600.0)
        assert endings(site)[0] == ("resolved", "unheard" if is_lost else "ended")


def test_a_rank_that_somebody_ended_while_the_others_go_on_is_no_stopped_job(site: Site) -> None:
    with site.collector.job(3) as job:
        job.hang(1)
        job.ranks[1].exit(signal=signal.SIGTERM)
        site.time.advance(40.0)
        (cause,) = site.collector.causes()
        assert (cause["state"], cause["culprit_ranks"]) == ("firing", [1])
        assert site.receiver.told


def test_a_job_whose_launcher_ends_it_after_a_death_has_failed(site: Site) -> None:
    with site.collector.job(3) as job:
        for _ in range(3):
            job.step()
        job.ranks[1].exit(signal=signal.SIGKILL)
        for rank in (0, 2):
            job.ranks[rank].exit(signal=signal.SIGTERM)
        site.time.advance(30.0)
        (found,) = site.collector.incidents()
        assert (found["category"], found["culprit_ranks"], found["resolution"]) == ("rank_dead", [1], "ended")
        assert [(one["state"], one["ranks"]) for one in site.jobs()] == [("failed", {"killed": 1, "stopped": 2})]
