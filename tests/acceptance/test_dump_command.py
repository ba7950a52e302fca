"""`otel-fr dump` reaches the monitors of ranks that really run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import torchrun
from tests.support.commands import BIN, otel_fr
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed


def test_a_running_jobs_files_can_be_asked_for(tmp_path: Path) -> None:
    ring_dir = {"OTEL_FR_RING_DIR": str(tmp_path / "rings")}
    env = {**ring_dir, "OTEL_FR_ENABLED": "1"}
    # The command knows a monitor by its command line.
    job = torchrun.start(tmp_path, "train.py", str(tmp_path / "out"), "held", nproc=2, env=env, program=torchrun.FRESH)
    assert job.stdout is not None
    next(line for line in job.stdout if "TRAINING" in line)
    env = {**torchrun.base_environment(), **ring_dir}
    asked: set[str] = set()

    def all_asked() -> bool:
        # Each by its process id: without one, the ranks of other tests' jobs would write files, too.
        for pid in {path.stem.split("-")[1] for path in tmp_path.glob("rings/*/rank*-*.ring")} - asked:
            done = subprocess.run([BIN / "otel-fr", "dump", "--pid", pid], env=env, capture_output=True, text=True)
            if done.stdout.count("asked its monitor") == 1:
                asked.add(pid)
        return len(asked) == 2

    assert wait_for(all_asked)
    assert wait_for(lambda: len(list((tmp_path / "dumps").glob("otel_fr_rank_*"))) == 2)
    analyzed = otel_fr("analyze", tmp_path / "dumps")
    (tmp_path / "out.go").touch()
    job.communicate(timeout=PATIENCE)
    assert job.returncode == 0
    assert analyzed.returncode == 0, analyzed.stdout
    assert analyzed.stdout.startswith("No fault found")
