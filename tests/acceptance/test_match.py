"""Hybrid-parallel and pipelined torchrun jobs with one fault: what a user sees live, and the same from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

FAULTS: dict[str, tuple[list[int], str, str]] = {
    # fault: culprits, description of the group, what else the text names
    "step_short": ([3], "dp", "barrier number"),
    "step_long": ([3], "default_pg", "all_reduce number 25 of group tp"),
    "checkpoint": ([3], "dp", "of group checkpoint"),
    "stage_stuck": ([1], "default_pg", "recv from rank 0"),
    "any_source": ([0], "default_pg", "recv from any source"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_at_fault_is_the_only_culprit_live_and_from_the_files(fault: str, tmp_path: Path) -> None:
    culprits, group, text = FAULTS[fault]
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "match.py", fault, nproc=4, env=torchrun.endpoint(running))
        assert wait_for(running.causes), running.err_file.read_text() + job.output
    live, every = running.causes(), running.incidents()
    status, report = job.analyze()
    assert status == 1
    for incident in (one_cause(live), one_cause(cause_incidents(report["incidents"]))):
        assert incident["culprit_ranks"] == culprits, incident["summary"]
        # On a machine that is too busy to run the rank's thread in time, Python counts as blocked.
        assert incident["category"] in ("missing_rank", "rank_stuck"), incident["summary"]
        assert incident["process_group"]["description"] == group
    assert text in whole_text(live[0])
    for incident in [*every, *report["incidents"]]:
        assert incident["caused_by"] is None or incident["culprit_ranks"] == []


def one_cause(incidents: list[Any]) -> Any:
    assert len(incidents) == 1, [(one["category"], one["culprit_ranks"], one["summary"]) for one in incidents]
    return incidents[0]


@pytest.mark.long
def test_a_healthy_mesh_raises_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "match.py", "healthy_mesh", nproc=4, env=torchrun.endpoint(running))
    assert job.returncode == 0, job.output
    assert running.incidents() == []
