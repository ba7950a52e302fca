"""Real torchrun jobs that hang and that their user ends: their incidents end with them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.waiting import until

pytestmark = torchrun.needed


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_incident_of_a_job_that_its_user_ends_is_over(tmp_path: Path, number: signal.Signals) -> None:
    """torchrun hands the signal on to its ranks, which do not get a terminal's own."""
    with torchrun.collector(tmp_path / "collector") as running:
        (tmp_path / "job").mkdir()
        process = torchrun.start(
            tmp_path / "job", "hung.py", str(tmp_path / "never"), nproc=4, env=torchrun.endpoint(running)
        )
        try:
            until(running.causes)
            process.send_signal(number)
            torchrun.finish(process, tmp_path / "job")
            until(lambda: [one["state"] for one in running.causes()] == ["resolved"])
        finally:
            process.kill()
        (incident,) = running.causes()
        assert (incident["resolution"], incident["culprit_ranks"]) == ("stopped", [2])
