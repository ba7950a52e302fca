"""Plain torchrun and an environment variable: its ranks record, not the launcher, and `otel-fr dump` reaches them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from otel_fr.ring import RingReader
from tests.support import torchrun
from tests.support.commands import BIN, otel_fr
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed


def test_a_running_jobs_files_can_be_asked_for(tmp_path: Path) -> None:
    ring_dir = {"OTEL_FR_RING_DIR": str(tmp_path / "rings")}
    env = {**ring_dir, "OTEL_FR_ENABLED": "1"}
    # The command knows a monitor by its command line.
    job = torchrun.start(tmp_path, "held.py", str(tmp_path / "go"), nproc=2, env=env, program=torchrun.FRESH)
    assert job.stdout is not None
    next(line for line in job.stdout if "HELD" in line)
    env = {**torchrun.base_environment(), **ring_dir}
    rings = [RingReader.open(path) for path in sorted(tmp_path.glob("rings/*/*.ring"))]
    assert [ring.meta["rank"] for ring in rings] == [0, 1], "the launcher, which has imported torch, records nothing"
    assert wait_for(lambda: all(ring.monitor_pid for ring in rings))
    for ring in rings:
        # Each by its process id: without one, the ranks of other tests' jobs would write files, too.
        command = [str(BIN / "otel-fr"), "dump", "--pid", str(ring.pid)]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.stdout.count("asked its monitor") == 1, done.stderr
    assert wait_for(lambda: len(list((tmp_path / "dumps").glob("otel_fr_rank_*"))) == 2)
    analyzed = otel_fr("analyze", tmp_path / "dumps")
    (tmp_path / "go").touch()
    job.communicate(timeout=PATIENCE)
    assert job.returncode == 0
    assert analyzed.returncode == 0, analyzed.stdout
    assert analyzed.stdout.startswith("No fault found")
