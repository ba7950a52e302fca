"""Real torchrun jobs with a rank that is slow in every step, and without."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.waiting import PATIENCE, until

pytestmark = torchrun.needed

HEALTHY_SECONDS = 24.0
"""Twice the window."""


def test_the_rank_that_is_slow_in_every_step_is_named_while_the_job_runs(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        with torchrun.start(tmp_path, "straggler.py", "slow", "80", str(stop), env=env) as job:
            (incident,) = until(lambda: [one for one in running.causes() if one["call_sites"]])
            stop.touch()
            output, _ = job.communicate(timeout=PATIENCE)
            assert job.returncode == 0, output
        assert until(lambda: [one for one in running.causes() if one["state"] == "resolved"])
    assert (incident["category"], incident["culprit_ranks"]) == ("straggler", [1])
    assert incident["waiting_ranks"] == [0, 2]
    assert "straggler.py:" in incident["call_sites"]["1"]
    assert incident["process_group"]["description"] == "default_pg"


@pytest.mark.long
def test_of_a_healthy_job_with_uneven_steps_nothing_is_said(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        with torchrun.start(tmp_path, "straggler.py", "healthy", "80", str(stop), env=env) as job:
            assert until(
                lambda: running.metric("otel_fr_collector_items_received_total", signal="traces", kind="otel_fr")
            )
            end = time.monotonic() + HEALTHY_SECONDS
            until(lambda: time.monotonic() > end)
            stop.touch()
            output, _ = job.communicate(timeout=PATIENCE)
            assert job.returncode == 0, output
        assert running.causes() == []
