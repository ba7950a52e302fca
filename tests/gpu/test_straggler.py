"""On NCCL, durations on the devices show which rank's device is slow. PyTorch has them only with timing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.faults import TIMING
from tests.gpu.hardware import LEAST_RANKS, Hardware
from tests.support import torchrun
from tests.support.simulated_device import SimulatedDevice

pytestmark = [*torchrun.needed, pytest.mark.long]


def test_the_rank_with_the_slow_device_is_named(simulated_device: SimulatedDevice, tmp_path: Path) -> None:
    hardware = Hardware("simulated device", LEAST_RANKS, LEAST_RANKS, "nccl", simulated_device)
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED) | {TIMING: "1"}
        with hardware.started(tmp_path / "job", "again", env, faults="kernel_ms rank=1 ms=40"):
            cause = running.wait_cause()
    assert (cause["category"], cause["culprit_ranks"]) == ("straggler", [1])
    assert len(running.causes()) == 1
