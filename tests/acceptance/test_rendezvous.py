"""``torchrun --rdzv-backend=otel-fr``: like c10d, but a node that fails its check stays out. Real agents and jobs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_fr.checks.model import JOB_STOPPED, NODE_EXCLUDED, NODE_FAILED
from otel_fr.dumps.read import load
from tests.support import mounts, torchrun, warm
from tests.support.otlp_sink import grpc_sink
from tests.support.paths import JOBS
from tests.support.ports import free_address
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed


def agent(
    folder: Path,
    *arguments: object,
    address: str = "localhost:0",
    nodes: str = "1",
    conf: str = "read_timeout=60",
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start torchrun's agent of a node with one rank, in ``folder``."""
    command = [
        *torchrun.WARM,
        f"--nnodes={nodes}",
        "--nproc-per-node=1",
        "--rdzv-id=llama",
        "--max-restarts=3",
    ]
    command += ["--rdzv-backend=otel-fr", f"--rdzv-endpoint={address}", f"--rdzv-conf={conf}"]
    command += ["--local-addr=127.0.0.1", str(JOBS / "checked.py"), *map(str, arguments)]
    merged = {**torchrun.base_environment(), "OTEL_FR_CHECK_SPACE": "none", **(env or {})}
    return warm.popen(command, env=merged, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit status, standard output and standard error of an agent."""
    out, err = process.communicate(timeout=2 * PATIENCE)  # torch starts up to nine times
    return process.returncode, out, err


def two(
    folder: Path,
    *arguments: object,
    nodes: str = "2",
    first: dict[str, str],
    second: dict[str, str],
    conf: str = "checks=paths",
) -> list[tuple[int, str, str]]:
    """Run two agents on this machine as two nodes, and return how they ended. The first node has the store."""
    address = free_address()
    started = [
        agent(
            folder,
            *arguments,
            address=address,
            nodes=nodes,
            conf=f"is_host={host},last_call_timeout=1,{conf}",
            env=env,
        )
        for host, env in (("true", first), ("false", second))
    ]
    try:
        return [end(one) for one in started]
    finally:
        for one in started:
            one.kill()


def test_two_nodes_train_and_restart_together_in_the_order_of_slurm(tmp_path: Path) -> None:
    ended = two(tmp_path, "fail", tmp_path, first={"SLURM_PROCID": "10"}, second={"SLURM_PROCID": "9"})
    for rank, (status, out, err) in zip((1, 0), ended, strict=True):
        assert (status, out.splitlines()) == (0, [f"attempt {n}: rank {rank} of 2 has the sum 2" for n in (0, 1)]), err


@pytest.mark.long
def test_nodes_of_which_one_has_failed_are_one_run_after_the_restart(tmp_path: Path) -> None:
    """The agent of the healthy node does not count the restart."""
    files = tmp_path / "files"
    env = {"OTEL_FR_ENABLED": "1", "OTEL_FR_DUMP_DIR": str(files)}
    ended = two(tmp_path, "one", tmp_path, first=env, second=env)
    assert [status for status, _, _ in ended] == [0, 0], ended
    assert {line.split(":")[0] for _, out, _ in ended for line in out.splitlines()} == {"attempt 0", "attempt 1"}

    def attempts() -> set[tuple[object, object]]:
        found = [load(files / f"otel_fr_rank_{rank}").facts for rank in (0, 1)]
        return {(facts["run_id"], facts["attempt"]) for facts in found}

    def is_one_run() -> bool:
        found = attempts()
        return len(found) == 1 and next(iter(found))[1] == 1

    assert wait_for(is_one_run), attempts()


@pytest.mark.long
def test_a_node_that_fails_a_check_stays_out_and_the_other_trains(tmp_path: Path) -> None:
    with grpc_sink() as sink:
        bad = {
            "OTEL_FR_CHECK_PATHS": str(tmp_path / "none"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.address,
            "OTEL_FR_JOB_ID": "llama",
        }
        good, failed = two(tmp_path, "nothing", tmp_path, nodes="1:2", first={}, second=bad)
        (event,) = sink.events_named("otel_fr.check_failed", 1)
    assert good[0] == 0, good
    assert good[1].split("\n")[0] == "attempt 0: rank 0 of 1 has the sum 1"
    status, out, err = failed
    assert (status, out) == (NODE_FAILED, "")
    assert f"otel-fr: this node failed a check: paths {tmp_path}/none: No such file or directory\n" in err
    assert "otel-fr: this node stays out of the job\n" in err
    assert "Traceback" not in err
    assert event.attributes["otel_fr.check.target"] == str(tmp_path / "none")
    assert event.resource["torch.job.id"] == "llama"


@pytest.mark.long
def test_a_spare_node_takes_the_place_of_one_whose_check_fails_before_the_restart(tmp_path: Path) -> None:
    data, address = tmp_path / "data", free_address()
    data.mkdir()

    def node(host: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        conf = f"is_host={host},checks=paths"
        return agent(tmp_path, "lose", data, address=address, nodes="2", conf=conf, env=env)

    started = [node("true"), node("false", {"OTEL_FR_CHECK_PATHS": str(data)})]
    try:
        assert started[0].stdout is not None
        assert "of 2 has the sum 2" in started[0].stdout.readline()
        started.append(node("false"))
        data.rmdir()
        (good, failed, spare) = (end(one) for one in started)
    finally:
        for one in started:
            one.kill()
    assert failed[0] == NODE_FAILED, failed
    assert "attempt 0: rank" in failed[1]
    assert f"paths {data}: No such file or directory" in failed[2]
    assert (good[0], spare[0]) == (0, 0), (good, spare)
    assert "of 2 has the sum 2" in good[1]
    assert "of 2 has the sum 2" in spare[1]


def test_a_mount_that_never_answers_keeps_its_node_out_in_time(tmp_path: Path) -> None:
    with mounts.silent(tmp_path / "data") as data:
        conf = f"checks=paths,check_paths={data},check_timeout=1"
        status, out, err = end(agent(tmp_path, "nothing", tmp_path, conf=conf))
    assert (status, out) == (NODE_FAILED, "")
    assert f"paths {data}: no answer in 1 s" in err


@pytest.mark.long
def test_the_collectors_advice_is_followed(tmp_path: Path) -> None:
    """A rank asks for its node's exclusion, so its node leaves when the job fails. The third failure stops the job."""
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_ATTRIBUTION_SECONDS": str(PATIENCE), "OTEL_FR_CHECKS": "none"}
        first, second = ({**env, "OTEL_RESOURCE_ATTRIBUTES": f"host.name={name}"} for name in ("node-a", "node-b"))
        stopped, excluded = two(
            tmp_path, "exclude", tmp_path / "none", nodes="1:2", first=first, second=second, conf="attribution=act"
        )
    assert excluded[0] == NODE_EXCLUDED, excluded
    assert "advises exclude_node node-b: rank " in excluded[2]
    assert " on node node-b asked for it: the NIC flaps" in excluded[2]
    assert stopped[0] == JOB_STOPPED, stopped
    assert [line.partition(" has ")[0][-4:] for line in stopped[1].splitlines()] == ["of 2", "of 1", "of 1"]
    advice = [line for line in stopped[2].splitlines() if line.startswith("otel-fr: attempt")]
    assert [line.partition(" advises ")[2].split(":")[0] for line in advice] == [
        "exclude_node node-b",
        "restart",
        "stop",
    ]
    assert "ValueError: bad sample 4711 at " in advice[-1]
    assert "in 3 runs: it will happen again" in advice[-1]
    assert "otel-fr: the job is stopped\n" in stopped[2]
