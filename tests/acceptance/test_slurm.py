"""Jobs of a real Slurm cluster, with deploy/slurm's batch files. Their name is their id. They are judged as usual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.paths import DEPLOY, JOBS
from tests.support.ports import free_port
from tests.support.slurm import Slurm, needs_slurm, slurm

pytestmark = [*torchrun.needed, needs_slurm, pytest.mark.long]

LAUNCHES = {
    "srun torchrun": ("--nodes=2", str(DEPLOY / "slurm" / "torchrun.sbatch")),
    "srun python": ("--nodes=2", "--ntasks-per-node=2", str(DEPLOY / "slurm" / "srun.sbatch")),
}
"""Launches of four ranks on two nodes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.mark.parametrize("launch", LAUNCHES)
def test_the_rank_that_hangs_a_job_is_named(cluster: Slurm, tmp_path: Path, launch: str) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.base_environment(), **torchrun.endpoint(running), "RANKS_PER_NODE": "2"}
        env["MASTER_PORT"] = str(free_port())  # another cluster's job of this id may use the batch file's own port
        options = [f"--chdir={folder}", f"--output={folder}/job.log", *LAUNCHES[launch]]
        job = cluster.submit(*options, str(JOBS / "faults.py"), "missing", env=env)
        incident = running.wait_cause(lambda one: one["culprit_ranks"] and "in idle" in one["stacks"].get("1", ""))
        assert (incident["job"], incident["category"], incident["culprit_ranks"]) == (job, "missing_rank", [1])
        assert cluster.ended(job) == "FAILED"
    # The files are in the batch file's default folder, below the job's id.
    assert list((folder / "flight-recorder" / job).glob("*"))
