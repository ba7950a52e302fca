"""`otel-fr dump` reaches the monitors of ranks that really run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import torchrun

pytestmark = [
    *torchrun.needed,
]


def test_a_running_jobs_files_can_be_asked_for(tmp_path: Path) -> None:
    ring_dir = {"OTEL_FR_RING_DIR": str(tmp_path / "rings")}
    env = {**ring_dir, "OTEL_FR_ENABLED": "1"}
    job = torchrun.start(tmp_path, "train.py", str(tmp_path / "out"), "slow", env=env)
    assert job.stdout is not None
    next(line for line in job.stdout if "TRAINING" in line)
    command = [str(torchrun.BIN / "otel-fr"), "dump"]

    def asked() -> bool:
        done = subprocess.run(command, env={**torchrun.base_environment(), **ring_dir}, capture_output=True, text=True)
        return done.stdout.count("asked its monitor") == 3

    assert torchrun.wait_until(asked)
    assert torchrun.wait_until(lambda: len(list((tmp_path / "dumps").glob("otel_fr_rank_*"))) == 3)
    job.communicate(timeout=60)
    assert job.returncode == 0
