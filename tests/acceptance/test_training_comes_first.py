"""The training job computes the same bits, whatever happens to otel-fr. `make chaos` tries more faults of otel-fr."""

from __future__ import annotations

from pathlib import Path

from tests.support import torchrun
from tests.support.waiting import PATIENCE

pytestmark = torchrun.needed


def test_when_the_collector_dies_half_way(tmp_path: Path) -> None:
    expected = str(tmp_path / "expected")
    bare = torchrun.run(tmp_path / "bare", "train.py", expected, "plain", nproc=2, env={"OTEL_FR_ENABLED": "0"})
    assert bare.returncode == 0, bare.output
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running)
        job = torchrun.start(tmp_path, "train.py", str(tmp_path / "out"), "slow", nproc=2, env=env)
        assert job.stdout is not None
        next(line for line in job.stdout if "TRAINING" in line)
        running.kill()
        job.communicate(timeout=PATIENCE)
    assert job.returncode == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "expected").read_bytes()
