"""Ranks that create process groups differently, in torchrun jobs: live, before the store's time-out, and from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.distributed import ProcessGroup

from tests.support import torchrun
from tests.support.long_tests import all_but
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

FAULTS: dict[str, tuple[int, str, int, str]] = {
    # job: culprit, operation and number, the group that the culprit makes where the others make another one
    "left_out": (2, "new_group", 2, ""),
    "other_order": (1, "new_group", 1, "right"),
    "other_ranks": (1, "new_group", 1, "tp (1) (ranks 0, 1)"),
    "split": (0, "all_reduce", 1, ""),
}


@pytest.mark.parametrize("fault", all_but(("left_out",), FAULTS))
def test_the_rank_at_fault_is_the_only_culprit_live_and_from_the_files(fault: str, tmp_path: Path) -> None:
    if fault == "split" and not hasattr(ProcessGroup, "split_group"):
        pytest.skip("this torch's groups have no split_group")
    culprit, operation, number, group = FAULTS[fault]
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_STALL_SECONDS": "2"}
        job = torchrun.run(tmp_path / "job", "new_groups.py", fault, "8", env=env)
        assert wait_for(running.causes), running.err_file.read_text() + job.output
        live = running.causes()
    status, report = job.analyze()
    assert status == 1, job.output
    for incident in (one_cause(live), one_cause(cause_incidents(report["incidents"]))):
        assert incident["culprit_ranks"] == [culprit], incident["summary"]
        assert (incident["operation"], incident["sequence_id"]) == (operation, number)
        assert incident["field"] == ("group" if group else None)
        assert incident["values"].get(str(culprit), "").startswith(group)
        assert fault != "split" or "split_group number 1" in whole_text(incident)


@pytest.mark.long
def test_a_deadlock_that_was_told_first_is_corrected_once_the_creation_is_heard_of(tmp_path: Path) -> None:
    """Spans come late, as from a machine that is too busy: the creations, which have completed, are in no report."""
    with torchrun.collector(tmp_path / "collector") as running:
        late = {"OTEL_FR_STALL_SECONDS": "2", "OTEL_BSP_SCHEDULE_DELAY": "7000"}
        job = torchrun.run(
            tmp_path / "job", "new_groups.py", "other_ranks", "10", env={**torchrun.endpoint(running), **late}
        )
        assert wait_for(lambda: [one["category"] for one in running.causes()] == ["op_mismatch"]), job.output
        assert one_cause(running.causes())["culprit_ranks"] == [1]
        told = [one for one in running.lines() if one["category"] == "deadlock"]
        corrected = [one for one in running.incidents() if one["id"] in {one["id"] for one in told}]
        assert all(one["caused_by"] or one["category"] == "op_mismatch" for one in corrected)


def one_cause(incidents: list[Any]) -> Any:
    assert len(incidents) == 1, [(one["category"], one["culprit_ranks"], one["summary"]) for one in incidents]
    return incidents[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "nproc", "barrier"), [("healthy", 3, "1"), pytest.param("surroundings", 4, "0", marks=pytest.mark.long)]
)
def test_groups_that_all_ranks_create_raise_nothing(program: str, nproc: int, barrier: str, tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running, torchrun.UNHURRIED), "TORCH_DIST_INIT_BARRIER": barrier}
        job = torchrun.run(tmp_path / "job", "new_groups.py", program, nproc=nproc, env=env)
    assert job.returncode == 0, job.output
    assert running.incidents() == []
    assert not job.files(), "a healthy job leaves no files"
