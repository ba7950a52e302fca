"""A real torchrun job that makes calls past PyTorch's operators: ``OTEL_FR_CAPTURE=both`` counts them, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.waiting import until

pytestmark = [
    *torchrun.needed,
    pytest.mark.skipif(
        'tuple(map(int, __import__("torch").__version__.split(".")[:2])) < (2, 10)',
        reason="the recorder of gloo's groups cannot be asked in this torch",
    ),
]
RANKS, STEPS = 2, 30
"""As in jobs/direct.py."""
CALLS = "otel_fr_collective_calls_total"
TOLD = "calls of process group default_pg are made past PyTorch's operators"


def calls(running: Collector) -> float:
    return sum(value for _, value in running.samples(CALLS))


def test_calls_on_a_backend_are_counted_and_judged_by_nobody(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running, torchrun.UNHURRIED), "OTEL_FR_CAPTURE": "both"}
        job = torchrun.run(tmp_path / "job", "direct.py", nproc=RANKS, env=env)
        assert job.returncode == 0, job.output
        until(lambda: calls(running) == 3 * RANKS * STEPS)
        assert running.metric(CALLS, operation="all_reduce") > RANKS * STEPS
    assert running.incidents() == []
    assert job.output.count(TOLD) == RANKS


def test_otherwise_only_calls_of_pytorchs_operators_are_known(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        job = torchrun.run(tmp_path / "job", "direct.py", nproc=RANKS, env=env)
        assert job.returncode == 0, job.output
        until(lambda: calls(running) == 2 * RANKS * STEPS)
    assert running.incidents() == []
    assert TOLD not in job.output
