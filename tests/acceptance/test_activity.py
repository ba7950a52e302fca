"""Real torchrun jobs with a rank that overruns a section: what a user sees and what becomes of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import until

pytestmark = torchrun.needed


@pytest.mark.long
def test_an_overrun_section_names_rank_section_and_stack(tmp_path: Path) -> None:
    """The rank hangs until an incident has all of it, and ends then."""
    with torchrun.collector(tmp_path / "collector") as running:

        def told() -> bool:
            incidents = [one for one in running.causes() if one["waiting_ranks"] == [0, 2]]
            return any("1" in one["stacks"] and "1" in one["flight_recorder_files"] for one in incidents)

        work = tmp_path / "job"
        work.mkdir()
        process = torchrun.start(work, "activity.py", "overrun", str(tmp_path), env=torchrun.endpoint(running))
        try:
            until(told)
        finally:
            (tmp_path / "go_on").touch()
            job = torchrun.finish(process, work)
        (live,) = running.causes()
    _, report = job.analyze()
    (offline,) = cause_incidents(report["incidents"])
    for incident in (live, offline):
        assert incident["category"] == "section_overrun"
        assert incident["culprit_ranks"] == [1]
        assert incident["waiting_ranks"] == [0, 2]
        assert "read_from_a_dead_file_server" in incident["call_sites"]["1"]
        assert "in read_from_a_dead_file_server" in incident["stacks"]["1"]
        assert incident["values"] == {"1": "section loading, limit 1.0 s"}


def test_a_rank_that_hangs_is_ended_and_the_restarted_job_finishes(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_ON_HANG": "kill", "OTEL_FR_EXIT_GRACE": "1"}
        job = torchrun.run(tmp_path / "job", "activity.py", "kill", str(tmp_path), env=env, restarts=1)
        until(lambda: [one["state"] for one in running.causes()] == ["resolved"])
        (incident,) = running.causes()
    assert job.returncode == 0, job.output
    assert "sent SIGTERM" in job.output
    assert "sent SIGKILL" in job.output, "its handler ignores SIGTERM"
    assert all(f"rank {rank} has finished" in job.output for rank in range(3))
    assert (incident["category"], incident["culprit_ranks"], incident["attempt"]) == ("section_overrun", [1], 0)
    assert "in read_from_a_dead_file_server" in incident["stacks"]["1"]
