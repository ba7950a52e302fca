"""Real torchrun jobs with and without a rank that is slow in every step: the incident, and /metrics."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.commands import otel_fr
from tests.support.waiting import PATIENCE, until

pytestmark = torchrun.needed

RANKS = 3
SLOW, DELAY = 2, 0.15
"""As in jobs/straggler.py."""
HEALTHY_SECONDS = 24.0
"""Twice the straggler window."""


def test_the_rank_that_is_slow_in_every_step_is_named_while_the_job_runs_with_what_it_costs(tmp_path: Path) -> None:
    stop, begun = tmp_path / "stop", time.monotonic()
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        with torchrun.start(tmp_path, "straggler.py", "slow", str(stop), nproc=RANKS, env=env) as job:
            (incident,) = until(lambda: [one for one in running.causes() if one["call_sites"]])
            ratio = until(lambda: running.metric("otel_fr_straggler_wait_ratio", rank=str(SLOW)))
            waited_for = [running.metric("otel_fr_rank_waited_for_seconds_total", rank=str(r)) for r in range(RANKS)]
            named = {labels["rank"] for labels, _ in running.samples("otel_fr_straggler_wait_ratio")}
            head = until(
                lambda: next((one for one in json.loads(running.get("/api/v1/jobs"))["jobs"] if one["late"]), None)
            )
            rates = json.loads(running.get(f"/api/v1/jobs/{head['id']}/rates"))
            shown = otel_fr("top", "--once", "--collector", running.http).stdout
            stop.touch()
            output, _ = job.communicate(timeout=PATIENCE)
            assert job.returncode == 0, output
        reduced = {"process_group": "default_pg", "operation": "all_reduce", "backend": "gloo", "dtype": "float32"}

        def counted(what: str) -> float:
            return running.metric(f"otel_fr_collective_{what}_total", **reduced, size="4KiB")

        until(lambda: counted("bytes") == 4 * counted("calls") > 0)  # one float: whether to stop; the last come late
        steps = until(lambda: running.metric("otel_fr_step_duration_seconds_count"))
        took, elapsed = running.metric("otel_fr_step_duration_seconds_sum"), time.monotonic() - begun
        bandwidth = running.metric("otel_fr_collective_bus_bandwidth_bytes_per_second", operation="all_reduce")
        assert until(lambda: [one for one in running.causes() if one["state"] == "resolved"])
    assert (incident["category"], incident["culprit_ranks"]) == ("straggler", [SLOW])
    assert incident["waiting_ranks"] == [0, 1]
    assert "straggler.py:" in incident["call_sites"][str(SLOW)]
    assert incident["process_group"]["description"] == "default_pg"
    slowest = rates["latest"]["slowest"]
    assert (slowest["rank"], slowest["process_group"]) == (SLOW, "default_pg")
    assert DELAY / 3 < slowest["lost_per_step_s"] < 10 * DELAY  # a busy machine adds to it
    assert max(rates["ranks"]["waited_for_s"]) == rates["ranks"]["waited_for_s"][SLOW]
    assert head["rates"]["slowest"]["rank"] == head["late"]["rank"] == SLOW
    assert f"rank {SLOW}: " in shown
    assert DELAY * steps < took < RANKS * elapsed  # sum over all ranks, in seconds
    assert bandwidth > 0
    assert named == {str(SLOW)}
    assert 0.3 < ratio <= 1.0
    assert waited_for[SLOW] > 2 * max(waited_for[:SLOW])
    waited = rates["ranks"]["waited_s"]
    assert min(waited[:SLOW]) > 2 * waited[SLOW]


@pytest.mark.long
def test_of_a_healthy_job_with_uneven_steps_nobody_is_named(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        with torchrun.start(tmp_path, "straggler.py", "healthy", str(stop), nproc=RANKS, env=env) as job:
            assert until(lambda: running.metric("otel_fr_rank_waited_for_seconds_total"))
            end = time.monotonic() + HEALTHY_SECONDS
            until(lambda: running.samples("otel_fr_straggler_wait_ratio") or time.monotonic() > end)
            assert running.samples("otel_fr_straggler_wait_ratio") == []
            (head,) = json.loads(running.get("/api/v1/jobs"))["jobs"]
            assert (head["late"], head["rates"]["slowest"]) == (None, None)
            stop.touch()
            output, _ = job.communicate(timeout=PATIENCE)
            assert job.returncode == 0, output
        assert running.causes() == []
