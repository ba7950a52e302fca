"""`otel-fr doctor` on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from otel_fr.capture.dispatcher import operators_of
from tests.support import single_rank
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE

COMMAND = Path(sys.executable).with_name("otel-fr")


def doctor(folder: Path, **extra: str) -> tuple[int, dict[str, str]]:
    """Its exit status, and what it says by topic."""
    env = single_rank.environment(folder, **extra)
    done = subprocess.run([COMMAND, "doctor"], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert not done.stderr
    return done.returncode, {key: text.strip() for key, _, text in (x.partition(":") for x in done.stdout.splitlines())}


def test_a_machine_where_ranks_record(tmp_path: Path) -> None:
    port = free_port()
    status, found = doctor(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    assert status == 0
    assert found["engine"] == "python (OTEL_FR_CAPTURE_ENGINE is python)"
    assert int(found["operators"].split()[0]) == len(operators_of(torch))
    assert found["enabled"] == "yes"
    assert "refused" in found["endpoint"]


def test_what_prevents_recording_is_said(tmp_path: Path) -> None:
    status, found = doctor(tmp_path, OTEL_FR_RING_DIR="/dev/null")
    assert status == 1
    assert found["enabled"].startswith("no: set OTEL_EXPORTER_OTLP_ENDPOINT")
    assert found["ring folder"].startswith("none of /dev/null")
