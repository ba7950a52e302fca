"""On NCCL, a rank whose peer has failed exits: a call that was aborted would return as if it had succeeded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.hardware import Hardware
from tests.support import torchrun

pytestmark = torchrun.needed


@pytest.mark.long
def test_a_rank_that_is_to_abort_its_calls_on_nccl_exits_and_computes_with_nothing(
    hardware: Hardware, tmp_path: Path
) -> None:
    if not hardware.gpus:
        pytest.skip("gloo's calls are ended with an error: tests/acceptance/test_peers.py")
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_ON_PEER_FAILURE": "abort", "OTEL_FR_EXIT_GRACE": "1"}
        with hardware.started(tmp_path / "job", "gil", env) as job:
            result = job.wait()
        (cause,) = running.causes()
    assert "this rank exits" in result.output
    assert "exitcode  : 75" in result.output
    assert "went on" not in result.output
    assert (cause["category"], cause["culprit_ranks"]) == ("rank_stuck", [1])
