"""A host that is lost at once, with its monitors: nobody says how its ranks ended."""

from __future__ import annotations

import json

import pytest
from otel_fr_collector import timeline
from otel_fr_collector.incidents.what_to_do import FIND_HOST

from otel_fr import semconv
from tests.support.played_job import Job
from tests.support.virtual_collector import VirtualCollector

CLOSED = {"type": "RuntimeError", "message": "[pair.cc:553] Connection closed by peer [10.0.0.1]:33197"}


def test_a_host_whose_end_broke_the_others_calls_is_named_although_these_end_before_it_counts_as_silent() -> None:
    with VirtualCollector() as collector, collector.job(6) as job:
        for rank in job.ranks:
            rank.host = f"n{rank.rank // 2}"
        job.step()
        job.all_reported()
        calls = [rank.issue(job.world) for rank in job.ranks]
        job.all_reported()
        for rank in job.ranks[:2]:
            rank.silent = True
        for call in calls[2:]:
            job.ranks[call.rank].fail(call, "error")
        for rank in job.ranks[2:]:
            rank.exit(code=1, exception=CLOSED)
        first = collector.wait_cause()
        found = collector.wait_cause(lambda one: one["culprit_ranks"])
    assert (first["category"], first["culprit_ranks"]) == ("stalled_collective", [])
    assert (found["id"], found["culprit_ranks"], found["stuck_on"]) == (first["id"], [0, 1], "lost")
    assert found["what_to_do"] == FIND_HOST


def test_a_host_that_is_lost_in_the_middle_of_a_call_is_named_and_no_rank_that_waits_for_it() -> None:
    with VirtualCollector() as collector, collector.job(6) as job:
        for rank in job.ranks:
            rank.host = f"n{rank.rank // 2}"
        job.step()
        calls = [rank.issue(job.world) for rank in job.ranks]
        job.all_reported()
        for rank in job.ranks[2:4]:
            rank.silent = True
        for call in calls:
            if call.rank in (0, 4, 5):
                job.ranks[call.rank].complete(call)
                job.ranks[call.rank].issue(job.world)
        found = collector.wait_cause(lambda one: one["culprit_ranks"])
        collector.time.advance(10.0)
        assert {tuple(one["culprit_ranks"]) for one in collector.causes()} == {(2, 3)}
    assert (found["rule"], found["stuck_on"]) == ("cut_off_in_call", "lost")


def test_ranks_that_end_for_a_node_that_joins_are_no_fault_nor_is_what_follows() -> None:
    with VirtualCollector() as collector, collector.job(4) as job:
        job.step()
        calls = [job.ranks[rank].issue(job.world) for rank in (0, 1)]
        job.all_reported()
        for rank in (2, 3):
            stopped = {"code": 0, "signal": 15, "clean": False, "known": True, "for_nodes": True}
            job.ranks[rank].ended = True
            job.ranks[rank].send_report(semconv.EVENT_EXITED, exit=stopped)
        for call in calls:
            job.ranks[call.rank].fail(call, "error")
            job.ranks[call.rank].exit(code=1, exception=CLOSED)
        collector.time.advance(10.0)
        assert [one for one in collector.incidents() if one["state"] == "firing"] == []
        assert len(collector.incidents()) <= 1, "the two that waited may have been judged before"


def place(job: Job, pid: int, number: int = 0) -> None:
    """Two ranks on each host, from this one on."""
    for rank in job.ranks:
        rank.host, rank.pid = f"n{number + rank.rank // 2}", pid + rank.rank


def end_as_torchrun(job: Job, collector: VirtualCollector) -> None:
    """The agent of n1 ends its ranks two seconds before the other one; those that wait for these fail."""
    calls = [job.ranks[rank].issue(job.world) for rank in (0, 1)]
    job.all_reported()
    for rank in (2, 3):
        job.ranks[rank].exit(signal=15)
    collector.time.advance(2.0)
    for call in calls:
        job.ranks[call.rank].fail(call, "error")
        job.ranks[call.rank].exit(code=1, exception=CLOSED)


@pytest.mark.parametrize(
    ("ranks", "first", "why"),
    [(6, 0, "replaced"), (4, 0, "ended"), (6, 1, "ended")],
    ids=["more ranks", "as many", "without a host"],
)
def test_ranks_that_torchrun_stops_as_nodes_join_are_no_fault_once_more_ranks_run_on_all_hosts(
    ranks: int, first: int, why: str
) -> None:
    """torchrun's own rendezvous tells nobody why it stops them, and its next attempt may have the same number."""
    with VirtualCollector() as collector:
        with collector.job(4) as job:
            place(job, 100)
            job.step()
            end_as_torchrun(job, collector)
            opened = collector.wait_cause()
            collector.time.advance(2 * timeline.ENDED_SECONDS)
            assert collector.causes()[-1]["state"] == "firing"
        with collector.job(ranks) as later:
            place(later, 200, first)
            later.step()
            collector.time.advance(3.0 if why == "replaced" else timeline.STOPPED_SECONDS)
        (over,) = collector.causes()
        advice = json.loads(collector.get(f"/api/v1/attribution?job={job.id}&run_id={job.run}"))
    assert (over["id"], over["state"], over["resolution"]) == (opened["id"], "resolved", why)
    assert (opened["culprit_ranks"], advice["recommendation"]) == ([2, 3], "restart")
