"""Real jobs with one fault each, on gloo and on NCCL: who is named, and how soon, while PyTorch waits for 600 s."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.hardware import Hardware
from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import until

pytestmark = torchrun.needed

FAULTS = {
    # kind: category, culprit, number of the collective (None: not asked)
    "missing": ("missing_rank", 1, 2),
    "operation": ("op_mismatch", 2, 2),
    "size": ("size_mismatch", 2, 2),
    "reduce_op": ("reduce_op_mismatch", 2, 2),
    "deadlock": ("deadlock", 0, 2),  # the others both take B before A
    "device": ("rank_stuck", 1, 2),
}
LIMIT = {"cuda": 5.0, "cpu": 60.0}
"""Seconds from the first rank that waits to the incident, with the default stall time. A GPU's machine is taken to do
nothing else; on a CPU this shows that the test works."""


def seconds(incident: dict[str, Any]) -> float:
    begin, end = (datetime.fromisoformat(incident[key].replace("Z", "+00:00")) for key in ("started_at", "detected_at"))
    return (end - begin).total_seconds()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_live_and_from_the_files(
    hardware: Hardware, fault: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if fault == "device" and hardware.device == "cpu":
        pytest.skip("there is no device that could be behind its host")
    category, culprit, number = FAULTS[fault]

    def right(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [one for one in incidents if (one["category"], one["culprit_ranks"]) == (category, [culprit])]

    with torchrun.collector(tmp_path / "collector") as running:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{running.grpc}"}
        with hardware.started(tmp_path / "job", fault, env) as job:
            (incident,) = until(lambda: right(running.causes()))
            record_property("named after", f"{seconds(incident):.1f} s")
    assert job.result is not None
    assert [one["category"] for one in running.causes()] == [category], running.causes()
    assert incident["sequence_id"] == number
    assert fault != "device" or incident["stuck_on"] == "device", incident["summary"]
    assert seconds(incident) <= LIMIT[hardware.device]
    status, report = job.result.analyze()
    assert status == 1
    assert right(cause_incidents(report["incidents"])), report["incidents"]
