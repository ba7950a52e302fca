"""A real job in which one rank decides otherwise: its incident says in what, live and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import PATIENCE, until
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

TEXT = "skip_batch=True at step 12"


@pytest.mark.long
def test_the_first_decision_that_differed_is_named(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_STALL_SECONDS": "1"}
        job = torchrun.run(tmp_path / "job", "decisions.py", "skip", str(tmp_path), env=env)
        live = until(lambda: [one for one in running.causes() if TEXT in whole_text(one)])
    _, report = job.analyze()
    (offline,) = cause_incidents(report["incidents"])
    for incident in (live[0], offline):
        assert incident["culprit_ranks"] == [1]
        assert TEXT in whole_text(incident)
        assert "writes_log" not in whole_text(incident)


def test_it_is_named_too_where_the_job_goes_on_with_wrong_numbers(tmp_path: Path) -> None:
    """No rank stalls: the decisions come with the files that the collector asks for."""
    text = "clips=True at step 12; the others False"
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        process = torchrun.start(tmp_path, "decisions.py", "wrong_op", str(tmp_path), env=env)
        try:
            (incident,) = until(lambda: [one for one in running.causes() if text in whole_text(one)])
            assert process.poll() is None, "the job must still run when the incident is updated"
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
    assert (incident["category"], incident["culprit_ranks"]) == ("reduce_op_mismatch", [1])


@pytest.mark.long
def test_differences_of_a_healthy_job_raise_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "decisions.py", "healthy", str(tmp_path), env=torchrun.endpoint(running))
        assert job.returncode == 0, job.output
        assert running.causes() == []
