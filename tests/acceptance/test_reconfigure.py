"""The default process group, re-formed without a hung rank: the example as a user runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.commands import BIN
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE

torch = pytest.importorskip("torch")
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
pytestmark = torchrun.needed

STALL = 2.0


def ranks_of(job: subprocess.Popen[str]) -> list[int]:
    """Return process ids of the ranks that a torchrun has started and not waited for."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    return [int(pid) for pid in children.read_text().split()] if job.poll() is None else []


@pytest.mark.skipif(VERSION < (2, 14), reason=f"groups can be re-formed from torch 2.14 on, this is {VERSION}")
def test_training_goes_on_without_a_rank_that_hangs(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {
            **torchrun.base_environment(),
            **torchrun.endpoint(running, STALL),
            "OTEL_FR_ON_PEER_FAILURE": "abort",
            "OTEL_FR_DUMP_DIR": str(tmp_path / "dumps"),
        }
        script = str(ROOT / "examples/ddp_survives/train.py")
        command = [
            str(BIN / "torchrun"),
            "--standalone",
            "--nproc_per_node=3",
            script,
            "--pause",
            "0.3",
            "--steps",
            "20",
        ]
        job = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        lines: list[str] = []
        assert job.stdout is not None
        try:
            for line in job.stdout:
                lines.append(line)
                if "step 5 done" in line:  # the other ranks have continued, and the collector has seen it
                    cause = running.wait_cause(lambda one: one["state"] == "resolved")
                    for pid in ranks_of(job):
                        os.kill(pid, signal.SIGCONT)
            assert job.wait(PATIENCE) == 0, "".join(lines)
            accused = {tuple(one["culprit_ranks"]) for one in running.lines() if not one["caused_by"]}
            assert accused == {(1,)}, "and nobody who went on"
        finally:
            for pid in ranks_of(job):  # a stopped rank would outlive its torchrun
                os.kill(pid, signal.SIGKILL)
            job.kill()
            job.wait(PATIENCE)
    output = "".join(lines)
    steps = {
        int(step): (float(at), int(size)) for at, step, size in re.findall(r"(\S+) step (\d+) done by (\d)", output)
    }
    assert [steps[number][1] for number in range(1, 21)] == [3] * 3 + [2] * 17, output
    assert steps[4][0] - steps[3][0] >= STALL
    checksums = re.findall(r"rank \d of 2 finished, checksum (\S+)", output)
    assert len(checksums) == 2
    assert checksums[0] == checksums[1], "both have the same model"
    assert (cause["category"], cause["culprit_ranks"]) == ("rank_stuck", [1])
    assert "rank 1 leaves: " in output, "the rank that came back takes no part"


@pytest.mark.long
@pytest.mark.parametrize("way", ["otel-fr", "quorum"])
def test_the_comparison_measures_how_long_each_way_takes(way: str) -> None:
    """Without the ways that wait for a timeout."""
    program = str(ROOT / "examples/ddp_survives/compare.py")
    command = [sys.executable, program, "--ways", way, "--stall-seconds", str(STALL), "--timeout", "15"]
    env = torchrun.base_environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * PATIENCE, check=True)
    (row,) = done.stdout.splitlines()[2:]
    if "left out: " in row:
        pytest.skip(row[row.index("left out: ") :])
    found = re.search(r"(\d+\.\d)  2 ranks$", row)
    assert found, done.stdout + done.stderr
    assert float(found[1]) >= (STALL if way == "otel-fr" else 1.0)


def test_a_group_that_cannot_be_formed_anew_is_refused_with_the_reason() -> None:
    program = """
import os
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
import otel_fr
def refused():
    try:
        otel_fr.reconfigure(timeout=5)
    except otel_fr.ReconfigureError as error:
        print(error)
refused()
import torch.distributed as dist
refused()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
refused()
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    first, second, *third = done.stdout.splitlines()
    assert first == second == "there is no process group yet: call torch.distributed.init_process_group first"
    if VERSION < (2, 14):
        assert "needs torch 2.14 or later, and init_process_group(..., enable_reconfigure=True)" in third[0]
