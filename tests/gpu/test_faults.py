"""Real jobs with one fault each, on gloo and on NCCL: who is named, and how soon, while PyTorch waits for 600 s."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from otel_fr.match.facts.calls import UNSEEN_BEGIN
from tests.gpu.conftest import VARIABLE
from tests.gpu.faults import FAULTS, Fault, Observed, Said, is_right, observe
from tests.gpu.hardware import LEAST_RANKS, Hardware
from tests.support import torchrun
from tests.support.simulated_device import SimulatedDevice

pytestmark = torchrun.needed

LIMIT = 5.0
"""Most seconds from the first waiting rank to the incident, with the default stall time, on NCCL on an idle machine.
`make test-gpu` checks it. If no rank can be named, the incident may come `UNSEEN_BEGIN` later."""
STALL = 5.0 if VARIABLE in os.environ else 2.0
SHORT = {("batch", True), ("device_busy", True), ("begins_anew", False)}
"""(fault, whether calls are timed) of the cases that `make test` runs."""
SHORT_NCCL2 = {"batch"}
ON_NCCL2 = [name for name in FAULTS if name != "init_hang"]
"""nccl2 makes its communicator in init_process_group, which is not recorded."""
CASES = [
    pytest.param(name, timing, marks=[] if (name, timing) in SHORT else [pytest.mark.long], id=case)
    for name in FAULTS
    for timing, case in ((False, name), (True, f"{name}, timed"))
]


@pytest.mark.parametrize(("name", "timing"), CASES)
def test_a_fault_is_named_live_and_from_the_files(
    hardware: Hardware, name: str, timing: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    fault = FAULTS[name]
    if not hardware.gpus and (timing or fault.simulated or fault.needs_device):
        pytest.skip("there is no device")
    if fault.simulated and hardware.simulated is None:
        pytest.skip("only the simulated device has this fault")
    truth = fault.truth(hardware, timing=timing)
    found = observe(hardware, fault, tmp_path / "job", timing=timing, stall=STALL)
    check(fault, found, truth)
    record_property("named after", f"{found.seconds:.1f} s")
    if VARIABLE in os.environ and hardware.gpus:
        names_somebody = all(culprits for _, culprits in truth)
        assert found.seconds <= (LIMIT if names_somebody else LIMIT + UNSEEN_BEGIN)


@pytest.mark.parametrize(
    "name", [name if name in SHORT_NCCL2 else pytest.param(name, marks=pytest.mark.long) for name in ON_NCCL2]
)
def test_a_fault_is_named_on_nccl2_too(
    simulated_device: SimulatedDevice, name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The compiled engine records the calls, because nccl2 has no recorder."""
    hardware = Hardware("simulated device", LEAST_RANKS, LEAST_RANKS, "nccl2", simulated_device)
    found = observe(hardware, FAULTS[name], tmp_path / "job", stall=STALL, engine="compiled")
    fault = FAULTS[name]
    if fault.name == "stopped":
        # The process stops before it sees that its last call has completed: the incident may be about that call.
        fault = replace(fault, number=None)
    check(fault, found, fault.said)
    record_property("named after", f"{found.seconds:.1f} s")


def check(fault: Fault, found: Observed, truth: Sequence[Said]) -> None:
    assert found.first is not None
    assert is_right(found.live, truth), [(one["category"], one["culprit_ranks"], one["summary"]) for one in found.live]
    assert fault.number is None or found.live[0]["sequence_id"] == fault.number
    if not fault.is_over:
        assert is_right(found.hung, truth), found.hung
        assert is_right(found.after, truth), found.after
