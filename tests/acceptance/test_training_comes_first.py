"""The training job computes the same bits and ends with the same exit code, whatever becomes of otel-fr."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.mounts import tmpfs
from tests.support.ports import free_address
from tests.support.waiting import PATIENCE

pytestmark = torchrun.needed

_TORCH_ABORTS = "terminate called without an active exception"
"""What a rank of torch 2.13 with gloo says when it exits, now and then, before SIGABRT ends it: in one of six jobs
without otel-fr on a busy machine."""


def _train(folder: Path, env: dict[str, str], program: Sequence[str] = torchrun.FRESH) -> torchrun.Job:
    """The job that ends with status 3; again if torch itself aborts it."""
    for _ in range(5):
        job = torchrun.run(folder, "train.py", str(folder / "out"), "exit3", env=env, program=program)
        if _TORCH_ABORTS not in job.output:
            break
    return job


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """What the job computes, and how it ends, without otel-fr."""
    folder = tmp_path_factory.mktemp("bare")
    job = _train(folder, {"OTEL_FR_ENABLED": "0"}, torchrun.WARM)
    assert "exitcode  : 3" in job.output
    return (folder / "out").read_bytes(), job.returncode


def _same(folder: Path, bare: tuple[bytes, int], env: dict[str, str]) -> torchrun.Job:
    job = _train(folder, env)
    assert (folder / "out").read_bytes() == bare[0]
    assert job.returncode == bare[1]
    assert "exitcode  : 3" in job.output
    return job


@pytest.mark.long
def test_with_a_collector(tmp_path: Path, bare: tuple[bytes, int]) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        _same(tmp_path, bare, torchrun.endpoint(running, torchrun.UNHURRIED))
    assert running.lines() == [], "the status is the program's: everything was done, and the groups were destroyed"


@pytest.mark.long
def test_with_no_server_at_the_endpoint(tmp_path: Path, bare: tuple[bytes, int]) -> None:
    _same(tmp_path, bare, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{free_address()}"})


@pytest.mark.long
def test_with_a_ring_folder_that_does_not_exist_and_cannot_be_made(tmp_path: Path, bare: tuple[bytes, int]) -> None:
    (tmp_path / "file").write_text("not a folder")
    job = _same(tmp_path, bare, {"OTEL_FR_ENABLED": "1", "OTEL_FR_RING_DIR": str(tmp_path / "file" / "ring")})
    assert "otel-fr" in job.output or "otel_fr" in job.output, "the user is told that nothing is recorded"


@pytest.mark.long
def test_with_a_full_ring_folder(tmp_path: Path, bare: tuple[bytes, int]) -> None:
    with tmpfs(tmp_path / "full", "size=64k") as full:
        _same(tmp_path, bare, {"OTEL_FR_ENABLED": "1", "OTEL_FR_RING_DIR": str(full)})


def test_when_the_collector_dies_half_way(tmp_path: Path, bare: tuple[bytes, int]) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.start(tmp_path, "train.py", str(tmp_path / "out"), "slow", env=torchrun.endpoint(running))
        assert job.stdout is not None
        next(line for line in job.stdout if "TRAINING" in line)
        running.kill()
        job.communicate(timeout=PATIENCE)
    assert (tmp_path / "out").read_bytes() == bare[0]
    assert job.returncode == 0


@pytest.mark.long
def test_when_the_monitors_die_half_way(tmp_path: Path, bare: tuple[bytes, int]) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        ring_dir = tmp_path / "rings"
        env = {**torchrun.endpoint(running), "OTEL_FR_RING_DIR": str(ring_dir)}
        job = torchrun.start(tmp_path, "train.py", str(tmp_path / "out"), "slow", env=env)
        assert job.stdout is not None
        next(line for line in job.stdout if "TRAINING" in line)
        monitors = _monitors(ring_dir)
        assert len(monitors) == 3
        for pid in monitors:
            os.kill(pid, signal.SIGKILL)
        job.communicate(timeout=PATIENCE)
    assert (tmp_path / "out").read_bytes() == bare[0]
    assert job.returncode == 0


def _monitors(ring_dir: Path) -> list[int]:
    """The monitor processes that watch rings in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if "otel_fr.monitor" in command and str(ring_dir) in command:
            found.append(int(process.name))
    return found
