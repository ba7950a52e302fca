"""Real torchrun jobs in which a rank fails. The others hear of it, and otel-fr ends their calls that wait for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import torchrun, warm
from tests.support.collector_process import Collector
from tests.support.paths import JOBS
from tests.support.ports import free_address
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed

STALL = 2.0
ERROR = "PeerFailedError: a call that waited for rank 1 was ended"


def environment(collector: Collector, action: str) -> dict[str, str]:
    return {**torchrun.endpoint(collector, STALL), "OTEL_FR_ON_PEER_FAILURE": action}


MONITOR = 100
"""Added to a rank, it is the key of the rank's monitor."""


def follow(job: subprocess.Popen[str], *reactions: tuple[str, Callable[[dict[int, int]], object]]) -> str:
    """Wait for the job's end, and return its output.

    Args:
        reactions: (text, function). The function gets the process ids when the text first appears.
    """
    assert job.stdout is not None
    lines: list[str] = []
    pids: dict[int, int] = {}
    left = dict(reactions)
    for line in job.stdout:
        lines.append(line)
        found = re.match(r"\[(\d)\] (pid|monitor) (\d+)", line)
        if found:
            pids[int(found[1]) + MONITOR * (found[2] == "monitor")] = int(found[3])
        for text in [text for text in left if text in line]:
            left.pop(text)(pids)
    job.wait(PATIENCE)
    return "".join(lines)


def resume(pids: dict[int, int]) -> None:
    os.kill(pids[1], signal.SIGCONT)


def kill(pids: dict[int, int]) -> None:
    os.kill(pids[1], signal.SIGKILL)


def test_survivors_of_a_stopped_rank_are_freed_and_it_cannot_disturb_them_when_it_comes_back(tmp_path: Path) -> None:
    """Rank 0 waits for the stopped rank. Rank 2 finishes its own code first, and its next call names the failure."""
    streams: list[float] = []
    with torchrun.collector(tmp_path / "collector") as running:

        def count_streams(_: dict[int, int]) -> None:
            """Count while all ranks live. A rank that ends hands the stream over, and then there may be two."""
            streams.append(running.metric("otel_fr_collector_control_streams"))

        job = torchrun.start(tmp_path, "peers.py", "comes_back", env=environment(running, "abort"))
        output = follow(job, ("[2] told of", count_streams), ("[2] the other group gives", resume))
        (incident,) = running.causes()
    assert streams == [1], "the ranks of a machine share it"
    ended = {rank: re.search(rf"\[{rank}\] step 3 ended after (\S+) s: {ERROR}", output) for rank in (0, 2)}
    for rank in (0, 2):
        assert f"[{rank}] told of [1] stuck in ['default_pg'] on otel-fr-peers" in output
        assert ended[rank], output
        assert f"[{rank}] the other group gives 2.0" in output
    assert ended[0] is not None
    assert float(ended[0][1]) >= STALL
    assert "[0] context RuntimeError" in output
    assert "[2] user code went on to its end" in output
    assert re.search(r"\[1\] step 3 ended after .* s: RuntimeError: .*gloo", output), "it must not go on"
    assert "a callback of on_peer_failure raised" in output
    assert f"(incident {incident['id']})" in output
    assert job.returncode == 0


@pytest.mark.long
def test_a_rank_that_is_to_exit_does_so_with_its_own_status_from_within_ddp(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.start(tmp_path, "peers.py", "ddp", env=environment(running, "exit"))
        output = follow(job, ("[2] context PeerFailedError", kill))
        culprits = {tuple(incident["culprit_ranks"]) for incident in running.causes()}
    assert re.search(r"\[0\] step 3 ended after \S+ s: RuntimeError: .*gloo", output), output
    assert f"otel_fr.fault_tolerance.peers.{ERROR}" in output  # in the traceback
    assert job.returncode == 1  # torchrun's
    assert culprits == {(1,)}, "the survivors that leave are no culprits"


@pytest.mark.long
def test_without_being_asked_to_a_rank_ends_no_call(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.start(tmp_path, "peers.py", "stopped", env=environment(running, "ignore"))
        output = follow(job, ("[0] told of [1] stuck", resume))
    assert job.returncode == 0
    assert output.count("finished") == 3


def resume_with_monitor(pids: dict[int, int]) -> None:
    for rank in (1, MONITOR + 1):
        os.kill(pids[rank], signal.SIGCONT)


@pytest.mark.long
def test_a_rank_that_is_stopped_with_its_monitor_has_failed(tmp_path: Path) -> None:
    """The ended calls are made by hooks of the backward pass."""
    with torchrun.collector(tmp_path / "collector") as running:

        def stop(pids: dict[int, int]) -> None:
            assert wait_for(lambda: running.metric("otel_fr_collector_ranks") == 3)
            for one in (MONITOR + 1, 1):
                os.kill(pids[one], signal.SIGSTOP)

        env = {**environment(running, "abort"), "OTEL_FR_PEER_TIMEOUT": str(STALL)}
        job = torchrun.start(tmp_path, "peers.py", "unheard", env=env)
        output = follow(job, ("[1] may be stopped", stop), ("[2] the other group gives", resume_with_monitor))
    for rank in (0, 2):
        assert f"[{rank}] told of [1] silent in ['default_pg']" in output, output
        assert re.search(rf"\[{rank}\] step 3 ended after \S+ s: {ERROR}", output), output


def test_a_rank_that_is_killed_under_another_torchrun_is_told_at_once(tmp_path: Path) -> None:
    address = free_address()
    with torchrun.collector(tmp_path / "collector") as running:
        env = {
            **torchrun.base_environment(),
            **environment(running, "abort"),
            "OTEL_FR_JOB_ID": "two-nodes",
            "OTEL_FR_DUMP_DIR": str(tmp_path / "dumps"),
        }
        jobs = []
        for node in range(2):
            host, port = address.rsplit(":", 1)
            command = [*torchrun.WARM, "--nnodes=2", "--nproc_per_node=1", f"--node_rank={node}"]
            command += [f"--master_addr={host}", f"--master_port={port}", str(JOBS / "peers.py"), "killed"]
            jobs.append(warm.popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path))
        outputs = [follow(job) for job in jobs]
    assert "[0] told of [1] ended in ['default_pg']" in outputs[0], outputs[0]
    assert "was killed by signal 9 (SIGKILL)" in outputs[0]
    ended = re.search(r"\[0\] step 3 ended after (\S+) s", outputs[0])
    assert ended
    assert jobs[1].returncode == 1
