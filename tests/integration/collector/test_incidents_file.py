"""``--incidents`` at paths that are no plain files, or cannot be written."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from pathlib import Path

from tests.support.collector_process import Collector, running
from tests.support.commands import otel_fr
from tests.support.incident_receivers import AlertSink
from tests.support.played_job import Job
from tests.support.waiting import wait_for

PROBLEM = "degraded: incidents are missing from the --incidents file: it cannot be written\n"


def test_a_pipe_without_a_reader_is_an_error_and_no_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = otel_fr("collector", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--incidents", str(pipe))
    assert done.returncode == 2
    assert f"--incidents {pipe}: no process reads this pipe" in done.stderr


def open_incident(collector: Collector, alerts: AlertSink, name: str) -> None:
    """A job with one incident, whose alert arrives whatever becomes of the file."""
    with Job(collector, 2, name) as job:
        job.step()
        job.skip(1)
        assert wait_for(lambda: any(alert["labels"]["job_id"] == name for post in alerts.posts for alert in post))


def drain(reader: int) -> bytes:
    """All that is in a pipe."""
    found = b""
    with contextlib.suppress(BlockingIOError):
        while data := os.read(reader, 1 << 20):
            found += data
    return found


def test_a_pipe_gets_whole_lines_and_is_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    alerts = AlertSink()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with running(tmp_path / "run", "--alertmanager", alerts.url, "--incidents", str(pipe)) as collector:
        open_incident(collector, alerts, "read")
        first = drain(reader)
        assert json.loads(first.splitlines()[0])["job"] == "read"
        assert first.endswith(b"\n")
        writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b" " * 4_096)
        open_incident(collector, alerts, "full")
        assert wait_for(lambda: collector.get("/healthz") == PROBLEM)
        os.close(writer)
        drain(reader)
        open_incident(collector, alerts, "again")
        assert wait_for(lambda: collector.get("/healthz") == "ok\n")
        assert {json.loads(line)["job"] for line in drain(reader).splitlines()} >= {"again"}
    os.close(reader)
    alerts.close()


def test_a_file_that_cannot_be_written_shows_in_the_health(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk; the line that was begun is completed later."""
    alerts = AlertSink()
    with running(tmp_path, "--alertmanager", alerts.url) as collector:
        pid = collector.process.pid
        open_incident(collector, alerts, "before")
        whole = collector.incidents_file.stat().st_size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (whole + 100, resource.RLIM_INFINITY))
        open_incident(collector, alerts, "during")
        assert wait_for(lambda: collector.get("/healthz") == PROBLEM)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        open_incident(collector, alerts, "after")
        assert wait_for(lambda: collector.get("/healthz") == "ok\n")
        assert {line["job"] for line in collector.lines()} >= {"before", "during", "after"}
    alerts.close()
