"""A real torchrun job with a rank that overruns a section: the user's view, and the end of the job."""

from __future__ import annotations

from pathlib import Path

from tests.support import torchrun
from tests.support.waiting import until

pytestmark = torchrun.needed


def test_a_rank_that_hangs_is_ended_and_the_restarted_job_finishes(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        # The section's limit shows the hang. A busy machine must not make a rank stall.
        env = {**torchrun.endpoint(running, torchrun.UNHURRIED), "OTEL_FR_ON_HANG": "kill", "OTEL_FR_EXIT_GRACE": "1"}
        job = torchrun.run(tmp_path / "job", "activity.py", str(tmp_path), env=env, restarts=1)
        until(lambda: [one["state"] for one in running.causes()] == ["resolved"])
        (incident,) = running.causes()
    assert job.returncode == 0, job.output
    assert "sent SIGTERM" in job.output
    assert "sent SIGKILL" in job.output, "its handler ignores SIGTERM"
    assert all(f"rank {rank} has finished" in job.output for rank in range(3))
    assert (incident["category"], incident["culprit_ranks"], incident["attempt"]) == ("section_overrun", [1], 0)
    assert incident["values"] == {"1": "section loading, limit 1.0 s"}
    assert "read_from_a_dead_file_server" in incident["call_sites"]["1"]
    assert "in read_from_a_dead_file_server" in incident["stacks"]["1"]
