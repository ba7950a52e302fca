"""A short run of ``make fuzz``, and a failure: it ends the run with status 1, and can be replayed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

LATENCY = "10"
"""Limit of /healthz here, in seconds, beside other tests. The faults to find take tens of seconds."""
TARGETS = ("grpc", "http", "watch", "http head", "raw http", "raw grpc", "dump", "ring", "folder", "database")


def fuzz(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", "--latency", LATENCY, "--folder", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)


@pytest.mark.long
def test_ten_seconds_of_mutated_input_break_nothing(tmp_path: Path) -> None:
    done = fuzz(tmp_path, "--seconds", "10")
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
    assert re.search(r"^seed \d+", done.stdout)
    for target in TARGETS:
        assert re.search(rf"^ *[1-9][\d,]* {target}$", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.long
def test_a_failure_is_saved_and_can_be_replayed(tmp_path: Path) -> None:
    """The run fails because no collector fits into 1 MiB."""
    done = fuzz(tmp_path / "first", "--seconds", "60", "--seed", "7", "--resident", "1")
    assert done.returncode == 1
    found = re.search(r"holds more than 1 MiB\n  replay: python -m tests.fuzz --replay (\S+)", done.stdout)
    assert found, done.stdout + done.stderr
    again = fuzz(tmp_path / "second", "--replay", found[1], "--resident", "1")
    assert again.returncode == 1
    assert "holds more than 1 MiB" in again.stdout
    assert fuzz(tmp_path / "third", "--replay", found[1]).returncode == 0
