"""A program that does not read the output (a pager, a hung log driver) does not stop the collector."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from otel_fr_collector import output
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.output import Unblocked

from tests.support.commands import OTEL_FR
from tests.support.grpc_calls import unary
from tests.support.json_lines import json_lines
from tests.support.played_job import Job
from tests.support.waiting import PATIENCE, wait_for

CEILING = 35.0
"""Limit in seconds for an end that takes about one second."""
PIPE = 4_096
"""Bytes of a pipe. A few log lines fill it."""
JOBS = 40
"""Jobs with an incident each. The incident's text fills at least a tenth of a pipe."""
ADDRESSES = re.compile(rb"gRPC on (\S+), HTTP on (\S+)")
DROPPED = "otel_fr_collector_output_lines_dropped_total"


class Unread:
    """A collector. Its output is read only until the ports are known."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.incidents_file = folder / "incidents.jsonl"
        command = [*OTEL_FR, "collector", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "debug"]
        with contextlib.ExitStack() as stack:
            pipes = [os.pipe() for _ in range(2)]
            for _, write in pipes:
                fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
                stack.callback(os.close, write)
            self.out, self.err = (read for read, _ in pipes)
            self.process = subprocess.Popen(
                [*command, "--incidents", str(self.incidents_file), *options], stdout=pipes[0][1], stderr=pipes[1][1]
            )
        text = b""
        while (found := ADDRESSES.search(text)) is None or not text.endswith(b"\n"):
            text += os.read(self.err, 1)
        self.http = found[2].decode()
        self.channel = grpc.insecure_channel(found[1].decode())

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        return unary(self.channel, method)(data, **{"timeout": PATIENCE, "wait_for_ready": True, **options})

    def jobs_with_incidents(self) -> set[str]:
        return {line["job"] for line in json_lines(self.incidents_file)}

    def fetch(self, path: str) -> str:
        with urllib.request.urlopen(self.http + path, timeout=PATIENCE) as answer:
            text: str = answer.read().decode()
        return text


@contextlib.contextmanager
def unread(folder: Path, *options: str) -> Iterator[Unread]:
    collector = Unread(folder, *options)
    try:
        yield collector
    finally:
        collector.channel.close()
        collector.process.kill()
        collector.process.wait()
        os.close(collector.out)
        os.close(collector.err)


@pytest.mark.parametrize(
    "options", [pytest.param((), id="stdout", marks=pytest.mark.long), pytest.param(("--quiet",), id="stderr")]
)
def test_the_collector_goes_on_and_ends_in_time(tmp_path: Path, options: tuple[str, ...]) -> None:
    with unread(tmp_path, *options) as collector:
        for number in range(JOBS):
            with Job(collector, 2, f"job-{number}") as job:
                job.step()
                job.ranks[1].exit(signal=signal.SIGKILL)
        assert wait_for(lambda: len(collector.jobs_with_incidents()) == JOBS)
        assert collector.fetch("/healthz") == "ok\n"
        began = time.monotonic()
        collector.process.send_signal(signal.SIGTERM)
        assert collector.process.wait(PATIENCE) == 0
        assert time.monotonic() - began < CEILING


def test_what_does_not_fit_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_TEXTS", 10)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE)
    metrics = Metrics()
    with os.fdopen(write, "w") as stream:
        out = Unblocked(stream, "stdout", metrics)
        for number in range(100):
            out.write(f"{number:<{PIPE - 1}}\n")
        lost = metrics.registry.get_sample_value(DROPPED, {"stream": "stdout"})
        assert lost is not None
        assert 100 - 10 - 3 <= lost <= 100 - 10
        kept = [int(os.read(read, PIPE)) for _ in range(100 - int(lost))]
        assert kept == sorted(kept)
        out.drain(PATIENCE)
        out.write("after\n")
        assert os.read(read, PIPE) == b"after\n"
        out.drain(PATIENCE)
    os.close(read)


def test_a_closed_output_is_counted() -> None:
    metrics = Metrics()
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    out = Unblocked(stream, "stderr", metrics)
    out.write("lost\n")
    out.drain(PATIENCE)
    assert metrics.registry.get_sample_value(DROPPED, {"stream": "stderr"}) == 1
    with contextlib.suppress(OSError):
        stream.close()
