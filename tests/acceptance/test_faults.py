"""Real torchrun jobs with one fault each: the incident a user sees live, and the same from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.long_tests import all_but
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for

pytestmark = torchrun.needed

FAULTS = {"missing": ("missing_rank", 2), "killed": ("rank_dead", None)}
"""Of each: the category, and the collective's number; None: not asked. `tests/gpu` has all faults, also on the CPU."""

OUTCOMES = ("mismatch", "none", "undecided")
"""Of questions which collectives ranks made, because their fingerprints differ."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_live_and_from_the_files(fault: str, tmp_path: Path) -> None:
    category, number = FAULTS[fault]
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "fault.py", fault, env=torchrun.endpoint(running))
        assert wait_for(running.causes), running.err_file.read_text() + job.output
    status, report = job.analyze()
    live = running.causes()
    offline = cause_incidents(report["incidents"])
    assert status == 1
    for incidents in (live, offline):
        assert [(one["category"], one["culprit_ranks"]) for one in incidents] == [(category, [1])]
        assert number in (None, incidents[0]["sequence_id"])
    if fault == "missing":
        assert live[0]["id"] == offline[0]["id"]
        assert_shows_where_it_is_and_who_waits(live[0])
        said = job.output
        assert (
            said.count("the collector has opened an incident: ") == said.count("otel-fr: verdict: missing_rank: ") == 1
        )
        assert f"otel-fr analyze {job.dumps}; live: otel-fr incidents show {live[0]['id']}\n" in said


def assert_shows_where_it_is_and_who_waits(incident: dict[str, Any]) -> None:
    assert "fault.py" in incident["call_sites"]["1"]
    assert "idle" in incident["call_sites"]["1"]
    assert "in idle" in incident["stacks"]["1"]
    assert incident["waiting_ranks"] == [0, 2]
    assert "fault.py" in incident["call_sites"]["0"]
    assert incident["process_group"]["description"] == "default_pg"
    files = incident["flight_recorder_files"]
    assert {Path(path).exists() for path in files.values()} == {True}


@pytest.mark.parametrize("kind", all_but(("healthy",), ("healthy", "posted")))
def test_a_healthy_job_of_many_kinds_of_calls_raises_nothing(kind: str, tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "fault.py", kind, env=torchrun.endpoint(running, torchrun.UNHURRIED))
        assert [running.metric("otel_fr_collector_disagreements_total", outcome=one) for one in OUTCOMES] == [0.0] * 3
    assert job.returncode == 0, job.output
    assert "otel-fr" not in job.output
    assert running.incidents() == []
    assert not job.files(), "a healthy job leaves no files"
