"""Real torchrun jobs whose ranks miss heartbeats and overrun sections: what a user sees and what becomes of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.verdicts import cause_incidents
from tests.support.waiting import until

pytestmark = torchrun.needed


def hung(folder: Path, fault: str, running: Collector, **env: str) -> tuple[dict[str, Any], torchrun.Job]:
    """A job whose rank 1 hangs until an incident has all of it, and ends then: its only cause, and the job."""

    def told() -> bool:
        incidents = [one for one in running.causes() if one["waiting_ranks"] == [0, 2]]
        return any("1" in one["stacks"] and "1" in one["flight_recorder_files"] for one in incidents)

    work = folder / "job"
    work.mkdir()
    process = torchrun.start(work, "activity.py", fault, str(folder), env={**torchrun.endpoint(running), **env})
    try:
        until(told)
    finally:
        (folder / "go_on").touch()
        job = torchrun.finish(process, work)
    (incident,) = running.causes()
    return incident, job


@pytest.mark.long
def test_an_overrun_section_names_rank_section_and_stack(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        live, job = hung(tmp_path, "overrun", running)
    _, report = job.analyze()
    (offline,) = cause_incidents(report["incidents"])
    for incident in (live, offline):
        assert incident["category"] == "section_overrun"
        assert incident["culprit_ranks"] == [1]
        assert incident["waiting_ranks"] == [0, 2]
        assert "read_from_a_dead_file_server" in incident["call_sites"]["1"]
        assert "in read_from_a_dead_file_server" in incident["stacks"]["1"]
        assert incident["values"] == {"1": "section loading, limit 1.0 s"}


@pytest.mark.long
def test_a_missed_heartbeat_is_named(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        incident, _ = hung(tmp_path, "heartbeat", running, OTEL_FR_HEARTBEAT_TIMEOUT="1.5")
    assert (incident["category"], incident["culprit_ranks"]) == ("heartbeat_missed", [1])
    assert "in read_from_a_dead_file_server" in incident["stacks"]["1"]


@pytest.mark.long
def test_a_section_that_ends_late_is_one_incident_that_is_resolved(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(
            tmp_path / "job", "activity.py", "late", str(tmp_path), env=torchrun.endpoint(running, torchrun.UNHURRIED)
        )
        assert job.returncode == 0, job.output
        (incident,) = until(lambda: [one for one in running.causes() if one["state"] == "resolved"])
        assert [one["id"] for one in running.causes()] == [incident["id"]]
    assert (incident["category"], incident["culprit_ranks"]) == ("section_overrun", [1])
    assert incident["values"]["1"].startswith("section saving")


@pytest.mark.long
def test_a_healthy_job_with_sections_raises_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        job = torchrun.run(tmp_path / "job", "activity.py", "healthy", str(tmp_path), env=env)
    assert job.returncode == 0, job.output
    assert running.incidents() == []


@pytest.mark.long
def test_sections_that_exceptions_left_open_raise_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        job = torchrun.run(tmp_path / "job", "activity.py", "raises", str(tmp_path), env=env)
    assert job.returncode == 0, job.output
    assert running.incidents() == []


def test_a_rank_that_hangs_is_ended_and_the_restarted_job_finishes(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_ON_HANG": "kill", "OTEL_FR_EXIT_GRACE": "1"}
        job = torchrun.run(tmp_path / "job", "activity.py", "kill", str(tmp_path), env=env, restarts=1)
        incidents = until(running.causes)
    assert job.returncode == 0, job.output
    assert "sent SIGTERM" in job.output
    assert "sent SIGKILL" in job.output, "its handler ignores SIGTERM"
    assert all(f"rank {rank} has finished" in job.output for rank in range(3))
    (incident,) = incidents
    assert (incident["category"], incident["culprit_ranks"], incident["attempt"]) == ("section_overrun", [1], 0)
    assert "in read_from_a_dead_file_server" in incident["stacks"]["1"]


@pytest.mark.long
def test_ranks_that_are_ended_while_they_wait_for_one_that_hangs_are_not_named(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_ON_HANG": "kill"}
        job = torchrun.run(tmp_path / "job", "activity.py", "kill_all", str(tmp_path), env=env)
        assert job.output.count("sent SIGTERM") >= 1
        (live,) = until(running.causes)
    _, report = job.analyze()
    (offline,) = cause_incidents(report["incidents"])
    for incident in (live, offline):
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
        assert "read_from_a_dead_file_server" in incident["call_sites"]["1"]
