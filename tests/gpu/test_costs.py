"""What recording adds to training steps with NCCL. The figures of benchmarks/steps.py go into the report."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.gpu.hardware import Hardware
from tests.support import torchrun
from tests.support.paths import ROOT

BENCHMARK = ROOT / "benchmarks" / "steps.py"
SECONDS = {"cuda": 60.0, "cpu": 1.0}
"""Seconds of rounds for each kind of step. On a CPU, the test only shows that the benchmark runs."""
ROWS = {"cuda": ("compiled", "torch's recorder", "NCCL's timing", "off again"), "cpu": ("python",)}
KINDS = {"cuda": ("ddp", "fsdp2"), "cpu": ("ddp",)}


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_steps_are_measured(hardware: Hardware, record_property: Callable[[str, object], None]) -> None:
    if hardware.simulated:
        pytest.skip("the speed of a simulated device says nothing")
    command = [sys.executable, str(BENCHMARK), "--device", hardware.device, "--seconds", str(SECONDS[hardware.device])]
    # Ranks that share a GPU wait for their turns, and these waits would be measured, too.
    ranks = min(hardware.gpus, 2) if hardware.gpus else 2
    command += ["--launches", "1", "--ranks", str(ranks), "--kinds", *KINDS[hardware.device]]
    command += ["--rows", *ROWS[hardware.device]]
    env = torchrun.base_environment()
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS[hardware.device]:
        section = done.stdout.partition(f"\n{kind}: ")[2].partition("\n\n")[0]
        assert "of the training thread" in section.replace("\n", " "), done.stdout
        rows = [line for line in section.splitlines() if "(" in line or "goal" in line]
        assert rows
        record_property(kind, "; ".join(" ".join(line.split()) for line in rows))
