"""A collector and many short jobs, one after the other."""

from __future__ import annotations

import gc
import resource

import pytest
from otel_fr_collector import timeline

from otel_fr.control.v1 import control_pb2
from tests.support.played_job import Job
from tests.support.virtual_collector import VirtualCollector

WARM = 60
HANGS_EVERY = 10
FORGET = 5.0
"""Seconds for which the collector keeps a finished job. Some of the other jobs run in this time."""
MOST_MORE = 40 << 20
"""Bytes of memory that the later jobs may take beyond the first jobs, because finished jobs take bounded memory."""


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("jobs", [150, pytest.param(1_000, marks=pytest.mark.long)])
def test_many_jobs_in_a_row_leave_nothing_and_each_hang_is_named(monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    monkeypatch.setattr(timeline, "CLEAN_FORGET", FORGET)
    with VirtualCollector() as collector:
        named: dict[str, list[int]] = {}
        before = 0
        for number in range(jobs):
            job = Job(collector, 2, f"job-{number}", period=0.5, time=collector.time)
            request = control_pb2.WatchRequest(job_id=job.id, attempt=job.attempt, run_id=job.run, rank=0)
            with job, collector.service.control.watch(request):
                job.step()
                if number % HANGS_EVERY == 0:
                    waiting = job.skip(1)
                    cause = collector.wait_causes(len(named) + 1)[-1]
                    named[cause["job"]] = cause["culprit_ranks"]
                    job.go_on(waiting)
                job.step()
                for rank in job.ranks:
                    rank.exit(clean=True)
            if number == WARM:
                gc.collect()
                before = resident()
        gc.collect()
        assert resident() - before < MOST_MORE
        collector.time.advance(2 * FORGET)
        assert named == {f"job-{number}": [1] for number in range(0, jobs, HANGS_EVERY)}
        assert len(collector.causes()) == len(named)
        assert not [one["job"] for one in collector.incidents() if one["resolved_at"] is None]
        assert not collector.service.runs.by_id
        control = collector.service.control
        assert (control.count, control._watchers, control._standing, control._incidents) == (0, {}, {}, {})
