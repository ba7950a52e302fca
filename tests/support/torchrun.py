"""Runs real jobs under plain torchrun against a real collector, as a user would: environment variables only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import JOBS
from tests.support.ports import free_port

BIN = Path(sys.executable).parent
needed = [
    pytest.mark.torchrun,
    pytest.mark.skipif(not shutil.which("torchrun", path=str(BIN)), reason="torchrun is not installed here"),
]
"""Marks of tests that run torchrun jobs."""


def base_environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TORCH_FR", "TORCH_NCCL"))}
    env.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", PATH=f"{BIN}{os.pathsep}{env['PATH']}")
    return env


@dataclass
class Collector:
    """A running `otel-fr collector`."""

    process: subprocess.Popen[bytes]
    grpc: str
    http: str
    incidents_file: Path
    log: Path

    def incidents(self) -> list[dict[str, Any]]:
        """The last state of every incident, in the order in which they were opened."""
        if not self.incidents_file.exists():
            return []
        last: dict[str, dict[str, Any]] = {}
        for line in self.incidents_file.read_text().splitlines():
            incident = json.loads(line)
            last[incident["id"]] = incident
        return list(last.values())

    def causes(self) -> list[dict[str, Any]]:
        return [incident for incident in self.incidents() if not incident["caused_by"]]


@contextlib.contextmanager
def collector(folder: Path, *options: str, at: Collector | None = None) -> Iterator[Collector]:
    """A collector that runs in the block. ``at``: it takes the place, and the addresses, of one that has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    grpc, http = (at.grpc, at.http) if at else (f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}")
    log, incidents = folder / "collector.log", folder / "incidents.jsonl"
    command = [
        str(BIN / "otel-fr"),
        "collector",
        "--grpc",
        grpc,
        "--http",
        http,
        "--incidents",
        str(incidents),
        *options,
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=base_environment())
    try:
        wait_for_port(grpc, process)
        yield Collector(process, grpc, http, incidents, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(15)


def wait_for_port(address: str, process: subprocess.Popen[bytes]) -> None:
    host, port = address.rsplit(":", 1)
    end = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on {address}")


@dataclass
class Job:
    """A finished job."""

    returncode: int
    output: str
    seconds: float
    dumps: Path
    environment: dict[str, str] = field(repr=False, default_factory=dict)

    def analyze(self) -> tuple[int, dict[str, Any]]:
        """`otel-fr analyze` on the job's flight-recorder files: exit status and its JSON."""
        command = [str(BIN / "otel-fr"), "analyze", str(self.dumps), "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=base_environment())
        return done.returncode, json.loads(done.stdout) if done.stdout else {}


def start(
    folder: Path, script: str, *arguments: str, nproc: int = 3, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a job in the background; ``env`` is added to its environment."""
    command = [str(BIN / "torchrun"), "--standalone", f"--nproc_per_node={nproc}", str(JOBS / script), *arguments]
    merged = {**base_environment(), "OTEL_FR_DUMP_DIR": str(folder / "dumps"), **(env or {})}
    return subprocess.Popen(
        command, env=merged, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    )


def run(folder: Path, script: str, *arguments: str, nproc: int = 3, env: dict[str, str] | None = None) -> Job:
    """Run a job to its end."""
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    process = start(folder, script, *arguments, nproc=nproc, env=env)
    output, _ = process.communicate(timeout=90)
    (folder / "job.log").write_text(output)
    return Job(process.returncode, output, time.monotonic() - started, folder / "dumps")


def endpoint(running: Collector, stall_seconds: float = 2.0) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{running.grpc}",
        "OTEL_FR_STALL_SECONDS": str(stall_seconds),
        "OTEL_SERVICE_NAME": "e2e",
    }


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Poll ``condition()`` until it is true or the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())
