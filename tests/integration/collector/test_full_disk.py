"""A full or read-only disk. The collector continues in memory, reports it, and returns to the disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.collector_process import patched, running
from tests.support.commands import otel_fr
from tests.support.mounts import Disk, tmpfs
from tests.support.otlp_backends import grpc_backend
from tests.support.otlp_messages import spans
from tests.support.played_job import Job
from tests.support.waiting import wait_for

UP = "otel_fr_collector_forward_queue_up"
QUEUE = "otel_fr_collector_forward_queue_bytes"
BACKENDS_SOON = {"forward__sender__MAX_BACKOFF": 0.2}
ALL_SOON = {**BACKENDS_SOON, "forward__forwarder__CLEAN_EVERY": 0.2}
"""Lets the collector retry the backend and the disk soon."""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_full_disk_costs_no_verdict_and_no_request(tmp_path: Path, is_killed: bool) -> None:
    """Requests acknowledged before the disk was full also survive a kill."""
    with tmpfs(tmp_path / "disk", "size=3m") as disk, grpc_backend() as backend:
        backend.busy = 10**6
        options = ("--data", str(disk / "data"), "--forward", backend.url)
        with (
            running(
                tmp_path / "one", *options, program=patched(**(BACKENDS_SOON if is_killed else ALL_SOON))
            ) as collector,
            Job(collector, 2) as job,
        ):
            sent = [spans(number, size=50_000) for number in range(1, 101)]
            safe = 0
            for data in sent:
                assert collector.post("/v1/traces", data).status == 200
                safe += int(collector.metric(UP))
            assert 10 < safe < 80
            assert collector.get("/healthz").startswith("degraded: requests for the backends wait in memory")
            assert collector.err_file.read_text().count("forward.sqlite3 (") == 1
            job.skip(1)
            assert collector.wait_cause()["culprit_ranks"] == [1]
            if is_killed:
                collector.kill()
            else:
                backend.busy = 0
                assert wait_for(lambda: set(sent) <= set(backend.taken))
                assert wait_for(lambda: collector.metric(QUEUE) == 0)
                assert wait_for(lambda: collector.metric(UP) == 1)
                assert "requests" not in collector.get("/healthz")
                collector.send("/opentelemetry.proto.collector.trace.v1.TraceService/Export", spans(1_000))
                assert wait_for(lambda: spans(1_000) in backend.taken)
        if is_killed:
            backend.busy = 0
            with running(tmp_path / "two", *options, program=patched(**ALL_SOON)) as collector:
                assert wait_for(lambda: set(sent[: safe - 1]) <= set(backend.taken))
                assert wait_for(lambda: collector.metric(UP) == 1)


def test_a_collector_whose_disk_has_become_read_only_starts_and_finds_hangs(tmp_path: Path) -> None:
    """ext4 does this after an error. A restart must not end all verdicts."""
    with tmpfs(tmp_path / "disk", "size=3m") as disk:
        options = ("--data", str(disk / "data"))
        with running(tmp_path / "one", *options) as collector:
            assert collector.stop() == 0
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with running(tmp_path / "two", *options) as collector, Job(collector, 2) as job:
            job.step()
            job.ranks[1].exit(signal=9)
            assert collector.wait_cause()["culprit_ranks"] == [1]
            assert collector.get("/healthz").startswith("degraded: incidents wait in memory")


def test_a_disk_that_fails_under_a_collector_costs_no_incident(tmp_path: Path) -> None:
    """Earlier published incidents are on the disk, and later findings are kept in memory."""
    disk = Disk(tmp_path / "disk")
    options = ("--data", str(disk.folder / "data"))
    try:
        with (
            running(tmp_path / "one", *options, program=patched(timeline__PUBLISH_PATIENCE=100)) as collector,
            Job(collector, 2, "a") as a,
            Job(collector, 2, "b") as b,
        ):
            a.step()
            b.step()
            a.skip(1)
            before = collector.wait_cause()  # published only after it is on the disk, also on a busy machine
            disk.fail()
            b.ranks[1].exit(signal=9)
            assert collector.wait_cause(lambda one: one["job"] == "b")["culprit_ranks"] == [1]
            assert wait_for(lambda: collector.get("/healthz").startswith("degraded: incidents wait in memory"))
            open_now = collector.api("incidents?state=firing")["incidents"]
            assert {one["job"] for one in open_now} == {"a", "b"}
            checked = otel_fr("collector", "--check", *options)
            assert checked.returncode == 2
            assert "data: Read-only file system" in checked.stderr
            collector.kill()
        disk.unmount()
        disk.mount()
        with running(tmp_path / "two", *options) as collector:
            assert before["id"] in collector.get("/api/v1/incidents")
    finally:
        disk.unmount()
