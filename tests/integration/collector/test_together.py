"""Parts that work together over stops and restarts of a collector: forwarding, the store, and the restart grace."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.otlp.signals import LOGS

from otel_fr import identity
from otel_fr.match import Ending
from otel_fr.rank_report import ReportedExit
from tests.support.collector_process import start
from tests.support.otlp_backends import Backend, MemoryBackend, grpc_backend
from tests.support.played_job import Job
from tests.support.told import apply
from tests.support.virtual_collector import VirtualCollector
from tests.support.waiting import PATIENCE, wait_for


def spans_of(backend: Backend, trace: object) -> list[Span]:
    """Return all spans of a trace that the backend has taken."""
    found = []
    for data in list(backend.taken):
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            for scope in resource.scope_spans:
                found += [span for span in scope.spans if span.trace_id.hex() == trace]
    return found


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("selects", [False, True])
def test_an_incidents_trace_is_whole_over_a_restart_in_every_mode(
    tmp_path: Path, *, selects: bool, is_killed: bool
) -> None:
    """The ranks' spans come when the hang ends, after the collector's restart."""
    backend = MemoryBackend()
    with VirtualCollector(data=tmp_path, forward=[backend], selects=selects) as first, first.job(3) as job:
        waiting = job.hang(1)
        trace = first.wait_cause()["trace_id"]
        assert first.time.wait_for(lambda: spans_of(backend, trace))
        first.kill() if is_killed else first.stop()
        with VirtualCollector(first.time, data=tmp_path, forward=[backend], selects=selects) as second:
            job.collector = second
            job.all_reported()
            job.go_on(waiting)
            second.wait_cause(lambda one: one["state"] == "resolved")
            second.stop()
    spans = spans_of(backend, trace)
    root = identity.root_span_id(bytes.fromhex(str(trace)))
    assert len({span.span_id for span in spans}) == len(spans)
    assert {span.parent_span_id for span in spans} == {b"", root}
    assert sorted(span.name for span in spans if span.parent_span_id) == [
        "RESOLVED missing_rank: rank 1",
        "rank 1: not here",
        *(f"waits: all_reduce default_pg [rank {rank}]" for rank in (0, 2)),
    ]
    assert len(spans) - 4 == 1 + 3  # the root, and one span of each rank


def test_an_incidents_root_span_is_not_lost_by_a_kill_just_after_the_incident_was_published(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(grpc_backend())
        first = stack.enter_context(start(tmp_path, 1, "--forward", backend.url))
        job = stack.enter_context(Job(first, 3))
        job.hang(1)
        end = time.monotonic() + PATIENCE
        while not first.lines() and time.monotonic() < end:
            pass  # within a millisecond, so mostly the span is not yet in the queue
        first.kill()
        trace = first.lines()[0]["trace_id"]
        second = stack.enter_context(start(tmp_path, 2, "--forward", backend.url))
        job.collector = second
        job.all_reported()
        assert wait_for(lambda: spans_of(backend, trace))
        assert second.stop(signal.SIGTERM) == 0
        found = spans_of(backend, trace)
        assert len({span.SerializeToString() for span in found}) == len({span.span_id for span in found}) == 4
        third = stack.enter_context(start(tmp_path, 3, "--forward", backend.url))
        job.collector = third
        taken = len(spans_of(backend, trace))
        job.all_reported()
        assert wait_for(lambda: third.metric("otel_fr_collector_judgement_duration_seconds_count") >= 2)
        assert third.stop(signal.SIGTERM) == 0
        assert len(spans_of(backend, trace)) == taken


def test_what_the_end_brings_to_light_is_sent_on_as_well() -> None:
    """The mismatch is not final when the collector stops. It is published then, and so is its trace."""
    backend = MemoryBackend()
    with VirtualCollector(forward=[backend]) as collector, collector.job(3) as job:
        job.step()
        job.all_reported()
        assert len(backend.taken) == 3
        for number in (0, 1):
            job.ranks[number].issue(job.world, "all_reduce")
        job.ranks[2].issue(job.world, "broadcast", root=0)
        for rank in job.ranks:
            rank.send_report()
        assert collector.causes() == []
        collector.stop()
        published = collector.causes()
    assert [one["category"] for one in published] == ["op_mismatch"]
    names = [span.name for span in spans_of(backend, published[0]["trace_id"])]
    assert names[:2] == ["INCIDENT op_mismatch: rank 2", "rank 2: operation is broadcast, step train.py:42"], names


def test_backends_that_take_no_traces_are_not_sent_those_of_incidents() -> None:
    backend = MemoryBackend()
    with VirtualCollector(forward=[backend], signals=frozenset({LOGS})) as collector, collector.job(3) as job:
        job.hang(1)
        collector.wait_cause()
        collector.stop()
    assert set(backend.paths) == {LOGS}


def test_new_reports_are_not_overwritten_by_state_that_is_read_late() -> None:
    """The file became readable some time after the start. Meanwhile rank 0 reported and died, and rank 1 was silent."""
    run = Runs().get(RunId("job-7", 0, "r"), 0.0)
    assert run is not None
    apply(run, 0, 9, 1.0, exit=ReportedExit(0, 9))
    run.restore(None, {}, [RankState(0, stack="old"), RankState(1, ended=0.5, ending=Ending.KILLED, signal=15)])
    assert (run.ranks[0].ended, run.ranks[0].signal) == (1.0, 9)
    assert (run.ranks[1].ended, run.ranks[1].signal) == (0.5, 15)


def test_a_collector_that_cannot_go_on_says_so_by_its_exit_status(tmp_path: Path) -> None:
    """A supervisor that restarts it only on failure must see a failure."""
    code = """
from otel_fr.cli import main
from otel_fr_collector.service import Service
async def run(self):
    raise RuntimeError("a fault of our own")
Service.run = run
raise SystemExit(main(["collector", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert "internal error: the collector stops" in done.stderr
    assert done.returncode == 1
