"""Runs real jobs under torchrun with a real collector, as a user does: only environment variables name otel-fr."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from otel_fr.dumps.read import load
from tests.support import warm
from tests.support.collector_process import Collector, running
from tests.support.commands import BIN, otel_fr
from tests.support.paths import JOBS
from tests.support.ports import free_address
from tests.support.waiting import PATIENCE

needed = [
    pytest.mark.torchrun,
    pytest.mark.skipif(not shutil.which("torchrun", path=str(BIN)), reason="torchrun is not installed here"),
]
"""Marks for tests that run torchrun jobs."""


def base_environment() -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": path}


@contextlib.contextmanager
def collector(folder: Path, *options: str, at: Collector | None = None) -> Iterator[Collector]:
    """Run a collector during the block. ``at``: a collector that has ended; the new one takes its addresses."""
    grpc = at.grpc if at else free_address()
    http = at.http.removeprefix("http://") if at else free_address()
    with running(folder, "--grpc", grpc, "--http", http, *options) as started:
        yield started
        if started.process.poll() is None:
            assert started.stop() == 0


@dataclass
class Job:
    """A finished job."""

    returncode: int
    output: str
    dumps: Path

    def analyze(self) -> tuple[int, dict[str, Any]]:
        """Run `otel-fr analyze` on the job's flight-recorder files, and return exit status and JSON."""
        done = otel_fr("analyze", self.dumps, "--format", "json")
        return done.returncode, json.loads(done.stdout) if done.stdout else {}

    def files(self) -> list[tuple[str, str]]:
        """Return (name, reason) of each flight-recorder file."""
        return [(path.name, load(path).text("reason")) for path in sorted(self.dumps.glob("*"))]


FRESH = (str(BIN / "torchrun"),)
"""The beginning of the command of plain torchrun."""
WARM = FRESH if warm.FRESH else warm.torchrun()
"""torchrun with ranks that start with torch imported. Tests use it unless they need plain torchrun."""


def start(
    folder: Path,
    script: str,
    *arguments: str,
    nproc: int = 3,
    env: dict[str, str] | None = None,
    restarts: int = 0,
    program: Sequence[str] = WARM,
    output: int | IO[str] = subprocess.PIPE,
) -> subprocess.Popen[str]:
    """Start a job in the background. ``env`` is added to its environment. ``script`` may be a full path."""
    options = ["--standalone", f"--nproc_per_node={nproc}", f"--max-restarts={restarts}"]
    command = [*program, *options, str(JOBS / script), *arguments]
    merged = {**base_environment(), "OTEL_FR_DUMP_DIR": str(folder / "dumps"), **(env or {})}
    return warm.popen(command, env=merged, stdout=output, stderr=subprocess.STDOUT, cwd=folder)


def call(folder: Path, command: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run torchrun with the arguments ``command``, in exactly this environment."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm.popen([*WARM, *command], env=env, cwd=folder, **pipes) as process:
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def finish(process: subprocess.Popen[str], folder: Path, seconds: float = PATIENCE) -> Job:
    """Wait for the end of a job that `start` began in this folder, and return the job."""
    output, _ = process.communicate(timeout=seconds)
    (folder / "job.log").write_text(output)
    return Job(process.returncode, output, folder / "dumps")


class Started:
    """A job in the background. ``result`` is set once it has ended."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.result: Job | None = None

    def wait(self, seconds: float = PATIENCE) -> Job:
        """Wait for the job's end."""
        if self.result is None:
            self.result = finish(self._process, self._folder, seconds)
        return self.result


@contextlib.contextmanager
def started(folder: Path, script: str, *arguments: str, **options: Any) -> Iterator[Started]:
    """Run a job during the block, and then end it as a launcher does, unless it has ended.

    ``options``: as in `start`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process = start(folder, script, *arguments, **options)
    job = Started(process, folder)
    try:
        yield job
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            job.wait()
        except subprocess.TimeoutExpired:
            process.kill()
            job.wait()


def run(folder: Path, script: str, *arguments: str, **options: Any) -> Job:
    """Run a job to its end. ``options``: as in `start`."""
    with started(folder, script, *arguments, **options) as job:
        return job.wait()


UNHURRIED = 4.0
"""Stall time of jobs that must raise no incident: a busy machine may delay a rank for 2 s."""


def endpoint(running: Collector, stall_seconds: float = 2.0) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{running.grpc}",
        "OTEL_FR_STALL_SECONDS": str(stall_seconds),
        "OTEL_SERVICE_NAME": "e2e",
    }
