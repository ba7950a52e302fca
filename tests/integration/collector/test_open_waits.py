"""Waits that last count as those that have ended do: in the rates, the totals and the metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.played_job import Issued, Job
from tests.support.virtual_collector import VirtualCollector

LONG = 100.0


def rates(collector: VirtualCollector) -> dict[str, Any]:
    (job,) = json.loads(collector.get("/api/v1/jobs"))["jobs"]
    found: dict[str, Any] = json.loads(collector.get(f"/api/v1/jobs/{job['id']}/rates"))
    return found


def hang(job: Job) -> list[Issued]:
    """Rank 2 stays away from its pair, so rank 3 waits for it there, and ranks 0 and 1 for both in the next call."""
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
        assert open_total <= total == pytest.approx(open_total, abs=3.0)  # not counted again at its end
