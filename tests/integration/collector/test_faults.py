"""Faults of jobs played towards a collector. Each is named once, with the right culprit, in time."""

from __future__ import annotations

from typing import Any

import pytest

from otel_fr import semconv
from tests.support.virtual_collector import VirtualCollector
from tests.support.whole_text import whole_text

STACK = """Thread 0x1 (most recent call first):
  File "/job/data.py", line 17 in load
  File "/job/train.py", line 9 in main
"""


def test_a_rank_whose_recording_had_errors_is_not_named(collector: VirtualCollector) -> None:
    """A call that was not recorded looks as if the rank had left it out."""
    with collector.job(4) as job:
        job.ranks[1].extra["dropped"] = {"spans": 0, "reports": 0, "records": 0, "hook_errors": 1}
        for _ in range(3):
            job.step()
        job.skip(1)
        incident = collector.wait_cause()
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [])
        assert incident["waiting_ranks"] == [0, 2, 3]
        assert "not known whether rank 1 joined it" in whole_text(incident)


def test_a_rank_that_stays_away_is_named(collector: VirtualCollector) -> None:
    with collector.job(4) as job:
        for _ in range(3):
            job.step()
        job.skip(1)
        job.ranks[1].send_report(semconv.EVENT_IDLE, stack=STACK)
        incident = collector.wait_cause()
        assert incident["category"] == "missing_rank"
        assert incident["culprit_ranks"] == [1]
        assert incident["waiting_ranks"] == [0, 2, 3]
        assert (incident["operation"], incident["sequence_id"]) == ("all_reduce", 4)
        assert incident["process_group"]["description"] == "default_pg"
        assert incident["call_sites"]["0"] == "/job/train.py:42 step"
        assert incident["call_sites"]["1"] == "/job/data.py:17 load"
        assert "data.py" in incident["stacks"]["1"]
        assert incident["trace_id"]
        assert incident["started_at"] < incident["detected_at"]
        assert (incident["job"], incident["attempt"], incident["state"]) == ("job-7", 0, "firing")
        assert collector.time.wait_for(lambda: "INCIDENT" in collector.printed())
        text = collector.printed()
        for part in (
            "missing_rank: rank 1",
            "all_reduce number 4",
            "default_pg",
            "data.py:17 load",
            "train.py:42 step",
        ):
            assert part in text
        assert incident["trace_id"] in text


def test_a_caught_failure_is_over_and_a_later_fault_has_its_own_incident(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        pair = job.group("1", [0, 1])
        job.step()
        job.all_reported()
        call = job.ranks[0].issue(pair)
        opened = collector.wait_cause()
        assert (opened["category"], opened["culprit_ranks"]) == ("missing_rank", [1])
        job.ranks[0].fail(call)
        job.ranks[1].fail(job.ranks[1].issue(pair), "collective_failed")
        for _ in range(2):
            job.step()
            job.all_reported()
        over = collector.wait_cause(lambda one: one["state"] == "resolved")
        assert (over["id"], over["culprit_ranks"]) == (opened["id"], [1])
        job.skip(1)
        later = collector.wait_cause(lambda one: one["id"] != opened["id"])
        assert (later["category"], later["culprit_ranks"]) == ("missing_rank", [1])
        job.all_reported()
        old = next(one for one in collector.causes() if one["id"] == opened["id"])
        assert (old["state"], old["revision"]) == ("resolved", over["revision"])


def test_an_exception_is_named_with_its_line(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        job.hang(2)
        raised = {"type": "ValueError", "message": "bad sample 4711", "stack": STACK, "site": "/job/data.py:17 load"}
        job.ranks[2].send_report(semconv.EVENT_EXCEPTION, exception=raised)
        job.ranks[2].exit(code=1)
        job.ranks[2].send_report(semconv.EVENT_DUMP_WRITTEN, file="/dumps/rank_2")  # it lacks the exception
        incident = collector.wait_cause()
        assert (incident["category"], incident["culprit_ranks"]) == ("rank_dead", [2])
        assert "bad sample 4711" in whole_text(incident)
        (culprit,) = incident["culprits"]
        assert culprit.pop("error") == "ValueError: bad sample 4711"
        assert culprit == {"rank": 2, "host": "node-0", "replica": None, "ending": "raised", "signal": None}
        assert incident["call_sites"]["2"] == "/job/data.py:17 load"


@pytest.mark.parametrize(
    ("odd", "category", "field"),
    [
        ({"op": "broadcast", "root": 0}, "op_mismatch", "operation"),
        ({"sizes": [[4, 5]]}, "size_mismatch", "input_sizes"),
        ({"dtype": "Half"}, "dtype_mismatch", "dtype"),
        ({"reduce_op": "max"}, "reduce_op_mismatch", "reduce_op"),
    ],
)
def test_a_mismatch_needs_no_stall(collector: VirtualCollector, odd: dict[str, Any], category: str, field: str) -> None:
    with collector.job(4) as job:
        job.step()
        calls = [job.ranks[rank].issue(job.world, **(odd if rank == 2 else {})) for rank in range(4)]
        job.go_on(calls)
        incident = collector.wait_cause()
        assert (incident["category"], incident["culprit_ranks"], incident["sequence_id"]) == (category, [2], 2)
        assert incident["field"] == field
        assert set(incident["values"]) == {"0", "1", "2", "3"}


def test_a_mismatch_that_repeats_every_step_is_one_incident(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        for _ in range(100):
            calls = [job.ranks[rank].issue(job.world, reduce_op="max" if rank == 1 else "sum") for rank in range(3)]
            for rank in range(3):
                job.ranks[rank].complete(calls[rank])
        incident = collector.wait_cause()
        job.all_reported()
        assert incident["sequence_id"] == 1
        assert len(collector.causes()) == 1


def test_a_death_after_a_mismatch_that_the_job_got_over_raises_an_alarm_of_its_own(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        calls = [job.ranks[rank].issue(job.world, reduce_op="max" if rank == 2 else "sum") for rank in range(3)]
        job.go_on(calls)
        first = collector.wait_cause()
        job.step()
        job.all_reported()
        job.skip(1)
        job.ranks[1].exit(signal=9)
        second = collector.wait_cause(lambda one: one["id"] != first["id"])
        assert (second["category"], second["culprit_ranks"]) == ("rank_dead", [1])
        mismatch = collector.wait_cause(lambda one: one["id"] == first["id"])
        assert (mismatch["category"], mismatch["waiting_ranks"]) == ("reduce_op_mismatch", [])


def test_a_posted_receive_is_no_fault_until_a_thread_waits_for_it(collector: VirtualCollector) -> None:
    with collector.job(2) as job:
        job.step()
        posted = job.ranks[1].issue(job.world, "recv", kind="p2p", peer=0, tag=3, posted=True)
        job.ranks[0].issue(job.world, "send", kind="p2p", peer=1, tag=4)
        incident = collector.wait_cause()
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1]), "it waits nowhere"
        posted.posted = False
        assert collector.wait_cause(lambda one: one["culprit_ranks"] == [0, 1])


def test_a_newer_attempt_closes_the_incidents_of_the_one_before(collector: VirtualCollector) -> None:
    with collector.job(2) as job:
        job.hang(1)
        job.ranks[1].exit(signal=9)
        job.ranks[0].exit(signal=15)
        collector.wait_cause()
    with collector.job(2, attempt=1) as again:
        again.step()
        closed = collector.wait_cause(lambda one: one["state"] == "resolved")
        assert closed["attempt"] == 0
        again.skip(0)
        second = collector.wait_cause(lambda one: one["attempt"] == 1)
        assert second["state"] == "firing"
        assert second["id"] != closed["id"]


def test_flight_recorder_files_are_named(collector: VirtualCollector) -> None:
    with collector.job(2) as job:
        job.hang(1)
        incident = collector.wait_cause()
        for rank in job.ranks:
            rank.send_report(semconv.EVENT_DUMP_WRITTEN, file=f"/dumps/rank_{rank.rank}")
        files = {"0": "/dumps/rank_0", "1": "/dumps/rank_1"}
        collector.wait_cause(lambda one: one["flight_recorder_files"] == files)
        assert collector.time.wait_for(lambda: "/dumps/rank_1" in collector.printed())
        assert collector.causes()[0]["id"] == incident["id"]


def test_a_collector_that_was_suspended_reports_no_fault(collector: VirtualCollector) -> None:
    """A rank joins late during the stop, but within the stall time. The collector's old state looks like a stall."""
    with collector.job(2) as job:
        job.step()
        waiting = job.skip(1)[0]
        job.all_reported()
        late = job.ranks[1].issue(job.world)
        spans = [job.ranks[call.rank].complete(call, send=False) for call in (waiting, late)]
        collector.time.take(3.0)  # longer than a stall and than a silence; the collector does nothing meanwhile
        collector.time.advance(0.0)  # it judges before it has read the ranks' requests
        for rank, span in zip(job.ranks, spans, strict=True):
            rank.send_spans([span])
        job.all_reported()
        job.step()
        assert collector.lines() == []


def test_a_rank_whose_monitor_dies_is_not_named_where_it_has_joined(collector: VirtualCollector) -> None:
    with collector.job(3) as job:
        job.step()
        for rank in (0, 1):
            job.ranks[rank].issue(job.world)
        job.all_reported()
        job.ranks[0].silent = True
        assert collector.wait_cause()["culprit_ranks"] == [2]
