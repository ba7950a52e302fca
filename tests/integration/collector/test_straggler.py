"""The costs of waits, in fake spans: a rank that always comes last, and waits that have not ended."""

from __future__ import annotations

import io
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from rich.console import Console

from otel_fr import semconv
from otel_fr.console.job_view import jobs_table
from tests.support.played_job import Issued, Job, RankPlayer
from tests.support.virtual_collector import VirtualCollector

COMPUTE, LATE, TRANSFER = 0.3, 0.15, 0.01


def ended(player: RankPlayer, call: Issued, start: float, took: float) -> Span:
    """End a call, and return its span with the given start and duration, whatever the time is."""
    with player.lock:
        player.calls.remove(call)
        player.counts[call.group.id][1] = call.seq
        call.state, call.wall, call.took = "completed", start, took
        return call.span(player.job.run, 0.0)


def train(job: Job, steps: int, start: float, late: int | None) -> float:
    """Send the spans of so many steps at once. Returns the true time of their end. Each rank has its own clock."""
    spans: list[list[Span]] = [[] for _ in job.ranks]
    for _ in range(steps):
        times = [start + COMPUTE + (LATE if rank == late else 0.0) for rank in range(len(job.ranks))]
        start = max(times) + TRANSFER
        for player, enqueued in zip(job.ranks, times, strict=True):
            clock = 600.0 * player.rank
            spans[player.rank].append(ended(player, player.issue(job.world), enqueued + clock, start - enqueued))
    for player, own in zip(job.ranks, spans, strict=True):
        player.send_spans(own)
    return start


def test_a_rank_that_always_comes_last_is_an_incident_until_it_does_not() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        job.ranks[1].host = "gpu-17"
        job.all_reported()
        job.quiet()  # later reports have real times, which do not fit the spans' fake times
        now = train(job, 100, job.time.wall(), late=1)
        incident = collector.wait_cause()
        (listed,) = collector.api("jobs")["jobs"]
        ranks = collector.api(f"jobs/{listed['id']}")["ranks"]
        ratio = collector.metric("otel_fr_straggler_wait_ratio", job_id=job.id, rank="1")
        train(job, 200, now, late=None)
        collector.wait_cause(lambda one: one["state"] == "resolved")
    assert (incident["category"], incident["culprit_ranks"], incident["waiting_ranks"]) == ("straggler", [1], [0, 2])
    assert (incident["operation"], incident["sequence_id"], incident["trace_id"]) == (None, None, None)
    assert incident["summary"] == (
        "rank 1 (gpu-17) comes last in group default_pg (0): in 100 % of the latest 64 blocks with waits,"
        " by 150 ms on average; the others wait 33 % of their time"
    )
    shown = io.StringIO()
    console = Console(width=200, file=shown)
    console.print(jobs_table([listed], {}, 200))
    assert "rank 1: 150 ms, 33 %" in shown.getvalue()
    assert (listed["late"]["rank"], listed["late"]["process_group"]) == (1, "default_pg")
    assert [one is None for one in ranks["late"]] == [True, False, True]
    assert round(ratio, 2) == 0.33


def test_it_says_where_the_rank_was_most_often_in_three_looks() -> None:
    with VirtualCollector() as collector, collector.job(3) as job:
        job.all_reported()
        monitors = [collector.watch(job, rank) for rank in range(3)]
        job.quiet()
        train(job, 100, job.time.wall(), late=1)
        opened = collector.wait_cause()
        assert opened["call_sites"] == {}
        for number, line in enumerate((17, 90, 17), 1):
            command = monitors[1].next_command()
            assert command.HasField("take_stacks"), number
            job.ranks[1].send_report(semconv.EVENT_STACKS, stack="Thread MainThread", site=f"/job/data.py:{line} load")
            collector.time.advance(2.0)
        seen = collector.wait_cause(lambda one: one["call_sites"])
        assert (seen["id"], seen["call_sites"]) == (opened["id"], {"1": "/job/data.py:17 load"})
        assert any("2 of 3 looks" in text for text in seen["details"])
        collector.time.advance(20.0)
        collector.service.control.close()
        assert [monitor.others() for monitor in monitors] == [[], [], []], "no other is asked, and none again"


LONG = 100.0


def rates(collector: VirtualCollector) -> dict[str, Any]:
    (job,) = collector.api("jobs")["jobs"]
    return collector.api(f"jobs/{job['id']}/rates")


def hang(job: Job) -> list[Issued]:
    """Let rank 2 not join its pair. Rank 3 waits for it there; ranks 0 and 1 wait for both in the next call."""
    pair = job.group("1", [2, 3], "tensor_parallel")
    for _ in range(3):
        job.step(pair)
        job.step()
    found = [job.ranks[3].issue(pair), job.ranks[0].issue(job.world), job.ranks[1].issue(job.world)]
    job.all_reported()
    return found


def test_a_hang_counts_while_it_lasts_for_the_rank_that_it_begins_with() -> None:
    with VirtualCollector() as collector, collector.job(4) as job:
        waiting = hang(job)
        collector.wait_cause()
        collector.time.advance(LONG)
        found = rates(collector)
        assert found["latest"]["wait_share"] == 1.0
        assert found["latest"]["slowest"] is None
        waited_for = dict(zip(found["ranks"]["rank"], found["ranks"]["waited_for_s"], strict=True))
        assert waited_for[2] == pytest.approx(2 * LONG, rel=0.1)  # in both groups
        assert max(waited_for[rank] for rank in (0, 1, 3)) < 1.0
        open_total = collector.metric(
            "otel_fr_rank_waited_for_seconds_total", rank="2", process_group="tensor_parallel"
        )
        assert open_total == pytest.approx(LONG, rel=0.1)
        job.go_on(waiting[:1])
        job.step(waiting[0].group)
        total = collector.metric("otel_fr_rank_waited_for_seconds_total", rank="2", process_group="tensor_parallel")
        assert open_total <= total == pytest.approx(open_total, abs=3.0)  # not counted again at the waits' end
