"""Jobs of a real Slurm cluster, with the batch files of deploy/slurm: named by their id, judged like any other job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.external_programs import get
from tests.support.paths import DEPLOY, JOBS
from tests.support.ports import free_port
from tests.support.slurm import Slurm, needs_slurm, slurm
from tests.support.waiting import until

pytestmark = [*torchrun.needed, needs_slurm, pytest.mark.long]

LAUNCHES = {
    "srun torchrun": ("--nodes=2", str(DEPLOY / "slurm" / "torchrun.sbatch")),
    "srun python": ("--nodes=2", "--ntasks-per-node=2", str(DEPLOY / "slurm" / "srun.sbatch")),
}
"""Each: four ranks on two nodes."""
launches = pytest.mark.parametrize("launch", LAUNCHES)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Collector]:
    with torchrun.collector(tmp_path / "collector") as one:
        yield one


def submit(cluster: Slurm, to: Collector, folder: Path, launch: str, *job: str, **settings: Any) -> str:
    """Submit a script of the tests' jobs; the id of its Slurm job."""
    folder.mkdir()
    env = {**torchrun.base_environment(), **torchrun.endpoint(to, **settings), "RANKS_PER_NODE": "2"}
    env["MASTER_PORT"] = str(free_port())  # the batch file's own may be in use by another cluster's job of this id
    options = [f"--chdir={folder}", f"--output={folder}/job.log"]
    script, *arguments = job
    return cluster.submit(*options, *LAUNCHES[launch], str(JOBS / script), *arguments, env=env)


def jobs(of: Collector) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = get(f"{of.http}/api/v1/jobs")["jobs"]
    return found


@pytest.mark.parametrize("launch", ["srun python"])
def test_a_healthy_job_raises_nothing_and_has_the_name_of_its_id(
    cluster: Slurm, running: Collector, tmp_path: Path, launch: str
) -> None:
    job = submit(cluster, running, tmp_path / "job", launch, "fault.py", "healthy", stall_seconds=torchrun.UNHURRIED)
    assert cluster.ended(job) == "COMPLETED", (tmp_path / "job" / "job.log").read_text()
    (one,) = until(lambda: jobs(running))
    assert (one["job"], one["world_size"]) == (job, 4)
    assert not running.incidents()


@launches
def test_the_rank_that_hangs_a_job_is_named(cluster: Slurm, running: Collector, tmp_path: Path, launch: str) -> None:
    job = submit(cluster, running, tmp_path / "job", launch, "fault.py", "missing")
    incident = running.wait_cause(lambda one: one["culprit_ranks"] and "in idle" in one["stacks"].get("1", ""))
    assert (incident["job"], incident["category"], incident["culprit_ranks"]) == (job, "missing_rank", [1])
    assert cluster.ended(job) == "FAILED"
    # The files are in the folder of the batch file's default, by the job's id.
    assert list((tmp_path / "job" / "flight-recorder" / job).glob("*"))


@pytest.mark.parametrize("launch", ["srun torchrun"])
def test_a_job_that_is_cancelled_raises_nothing(
    cluster: Slurm, running: Collector, tmp_path: Path, launch: str
) -> None:
    job = submit(
        cluster,
        running,
        tmp_path / "job",
        launch,
        "train.py",
        str(tmp_path / "out"),
        "held",
        stall_seconds=torchrun.UNHURRIED,
    )
    until(lambda: [sum(one["ranks"].values()) for one in jobs(running)] == [4])
    cluster.command("scancel", job)
    assert cluster.ended(job) == "CANCELLED"
    until(lambda: jobs(running)[0]["state"] != "running")
    assert not running.incidents()
