"""Real torchft jobs, with torchft's own Lighthouse: two replicas, each under its own torchrun, on gloo."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.commands import BIN, otel_fr, run
from tests.support.paths import JOBS
from tests.support.ports import free_port, wait_for_port
from tests.support.verdicts import cause_incidents
from tests.support.waiting import PATIENCE
from tests.support.whole_text import whole_text

torch = pytest.importorskip("torch")
LIGHTHOUSE = BIN / "torchft_lighthouse"
pytestmark = [
    pytest.mark.long,
    *torchrun.needed,
    pytest.mark.skipif(
        not LIGHTHOUSE.exists(), reason="torchft is not installed (pip install --no-deps torchft==0.2.0)"
    ),
]


@contextlib.contextmanager
def lighthouse() -> Iterator[str]:
    """Run a Lighthouse, and yield its address."""
    port = free_port()
    options = ["--min_replicas", "1", "--join_timeout_ms", "1500", "--heartbeat_timeout_ms", "1500"]
    process = subprocess.Popen(
        [str(LIGHTHOUSE), "--bind", f"[::]:{port}", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_port(f"127.0.0.1:{port}", process)
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        process.wait()


class Replicas:
    """A job's replicas, and their torchruns."""

    def __init__(self, folder: Path, env: dict[str, str], nproc: int) -> None:
        self.folder = folder
        self._env = env
        self._nproc = nproc
        self.started: list[subprocess.Popen[str]] = []

    def start(self, number: int, mode: str = "go on") -> subprocess.Popen[str]:
        """Start a replica. Its output is added to its log."""
        torchrun = [str(BIN / "torchrun"), "--standalone", f"--nproc_per_node={self._nproc}"]
        job = subprocess.Popen(
            [*torchrun, str(JOBS / "torchft_replica.py"), str(number), mode, str(self.folder / "last")],
            env={**self._env, "REPLICA_GROUP_ID": str(number), "NUM_REPLICA_GROUPS": "2"},
            stdout=(self.folder / f"replica{number}.log").open("a"),
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(job)
        return job

    def log(self, number: int) -> str:
        return (self.folder / f"replica{number}.log").read_text()


@contextlib.contextmanager
def replicas(
    folder: Path, running: Collector, *, nproc: int = 1, env: Mapping[str, str] | None = None
) -> Iterator[Replicas]:
    """Yield a job without replicas so far. Kills the replicas at the end. ``env``: added to their environment."""
    with lighthouse() as address:
        merged = {
            **torchrun.base_environment(),
            **torchrun.endpoint(running, 2.0),
            "OTEL_FR_DUMP_DIR": str(folder / "dumps"),
            "TORCHFT_LIGHTHOUSE": address,
            **(env or {}),
        }
        found = Replicas(folder, merged, nproc)
        try:
            yield found
        finally:
            for job in found.started:
                if job.poll() is None:
                    ranks = run("ps", "-o", "pid=", "--ppid", job.pid).stdout.split()
                    for pid in (job.pid, *map(int, ranks)):  # a stopped rank outlives its torchrun
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                job.wait(PATIENCE)


def sizes(text: str) -> list[int]:
    """Return the number of replicas in each step, without repetitions."""
    found = [int(size) for size in re.findall(r"step \d+ of (\d+)", text)]
    return [size for at, size in enumerate(found) if at == 0 or found[at - 1] != size]


@pytest.mark.parametrize("nproc", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_replica_that_is_killed_is_named_and_one_that_rejoins_is_no_fault(nproc: int, tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        with replicas(tmp_path, running, nproc=nproc) as job:
            victim, survivor = job.start(0, "kill"), job.start(1)
            assert victim.wait(PATIENCE) != 0
            again = job.start(0, "rejoin")
            assert [again.wait(PATIENCE), survivor.wait(PATIENCE)] == [0, 0], job.log(0) + job.log(1)
        (cause,) = running.causes()
        (incident,) = running.incidents()
    assert sizes(job.log(1))[-3:] == [2, 1, 2], "the survivor went on alone, then with the replica again"
    assert (cause["category"], cause["state"]) == ("rank_dead", "resolved")
    assert "signal 9" in whole_text(cause)
    assert [one["replica"] for one in cause["culprits"]] == ["replica_0"]
    assert cause["job"].startswith("torchft-localhost:")
    (culprit,) = cause["culprit_ranks"]
    assert "torchft_replica.py" in cause["call_sites"][str(culprit)]
    # Without a prefix, the command judges the newest quorum, if the replicas wrote files of it.
    quorum = f"otel_fr_quorum_{incident['attempt']}_"
    done = otel_fr("analyze", tmp_path / "dumps", "--format", "json", "-p", quorum)
    (offline,) = cause_incidents(json.loads(done.stdout)["incidents"])
    assert (offline["category"], offline["culprit_ranks"], offline["id"]) == ("rank_dead", [culprit], incident["id"])


def test_a_replica_that_hangs_is_found_by_the_collective_that_the_other_waits_in(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running, replicas(tmp_path, running) as job:
        job.start(0, "stop")
        job.start(1)
        cause = running.wait_cause()
    (culprit,) = cause["culprit_ranks"]
    assert [one["replica"] for one in cause["culprits"]] == ["replica_0"]
    assert cause["waiting_ranks"] == [1 - culprit]
    assert cause["operation"] == "all_reduce"


def test_a_rank_that_hangs_in_its_replicas_own_group_is_found_there(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running, replicas(tmp_path, running, nproc=2) as job:
        job.start(0, "stop inside")
        job.start(1)
        cause = running.wait_cause()
    assert [one["replica"] for one in cause["culprits"]] == ["replica_0"]
    (culprit,) = cause["culprit_ranks"]
    assert culprit - 1 in cause["waiting_ranks"], "rank 0 of the same replica"


def test_a_call_that_waits_for_a_replica_that_hangs_is_ended_and_torchft_goes_on(tmp_path: Path) -> None:
    """Without otel-fr the step takes torchft's own timeout of 20 s."""
    env = {"OTEL_FR_ON_PEER_FAILURE": "abort", "BY_HAND": "1"}
    with torchrun.collector(tmp_path / "collector") as running, replicas(tmp_path, running, env=env) as job:
        job.start(0, "stop")
        survivor = job.start(1, "survive")
        assert survivor.wait(PATIENCE) == 0, job.log(1)
        (cause,) = running.causes()
    assert "otel-fr: rank" in job.log(1)
    assert "PeerFailedError" in job.log(1), "torchft logs the error"
    assert "Timed out" not in job.log(1)
    assert sizes(job.log(1))[-2:] == [2, 1]
    assert [one["replica"] for one in cause["culprits"]] == ["replica_0"]


def test_a_replica_that_is_made_to_exit_in_a_later_quorum_is_no_culprit(tmp_path: Path) -> None:
    """torchft hides the error from the program, which continues alone until otel-fr ends it."""
    env = {"OTEL_FR_ON_PEER_FAILURE": "exit", "OTEL_FR_EXIT_GRACE": "5", "BY_HAND": "1"}
    with torchrun.collector(tmp_path / "collector") as running, replicas(tmp_path, running, env=env) as job:
        job.start(0, "stop")
        survivor = job.start(1)
        assert survivor.wait(PATIENCE) == 1, job.log(1)
    (cause,) = running.causes()  # includes the last judgement's
    assert sizes(job.log(1))[-2:] == [2, 1], "it had gone on"
    assert re.search(r"exitcode\s*: 75", job.log(1))
    assert [one["replica"] for one in cause["culprits"]] == ["replica_0"]
