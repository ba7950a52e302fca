"""Real torchrun jobs whose ranks end in different ways: the verdict at each moment, and the same from the files."""

from __future__ import annotations

from itertools import dropwhile
from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

LONG = pytest.mark.long


def _run(folder: Path, how: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], torchrun.Job]:
    """Run ends.py: every revision of every cause, the causes in the files, and the job."""
    with torchrun.collector(folder / "collector") as running:
        job = torchrun.run(folder / "job", "ends.py", how, env=torchrun.endpoint(running))
    _, report = job.analyze()
    return cause_incidents(running.lines()), cause_incidents(report["incidents"]), job


@pytest.mark.parametrize(
    ("how", "told"),
    [
        pytest.param("watchdog_of_one", "SIGABRT", marks=LONG),
        ("watchdog_of_all", "SIGABRT"),
        pytest.param("own_limit", "TimeoutError: the step takes too long", marks=LONG),
        pytest.param("stopped", "", marks=LONG),
    ],
)
def test_the_end_of_the_ranks_that_waited_does_not_hide_for_whom(how: str, told: str, tmp_path: Path) -> None:
    revisions, offline, job = _run(tmp_path, how)
    assert job.returncode != 0
    assert len(offline) == 1
    assert len({revision["id"] for revision in [*revisions, *offline]}) == 1
    for verdict in (*revisions, *offline):
        assert (verdict["category"], verdict["culprit_ranks"], verdict["stuck_on"]) == ("missing_rank", [1], "host")
        assert verdict["waiting_ranks"] == [0, 2]
        assert "ends.py" in verdict["call_sites"]["1"]
    # The stall of the others can be reported before the stack of rank 1, which waits for a look at the process.
    for verdict in (revisions[-1], *offline):
        assert "idle" in verdict["stacks"]["1"]
    for last in (revisions[-1], offline[0]):
        assert told in whole_text(last)
        assert "SIGTERM" in whole_text(last)


@pytest.mark.long
@pytest.mark.parametrize(("how", "told"), [("exits_with_1", "code 1"), ("exits_with_0", "")])
def test_a_stuck_rank_that_exits_by_its_own_handler_of_sigterm_is_still_missing(
    how: str, told: str, tmp_path: Path
) -> None:
    revisions, offline, _ = _run(tmp_path, how)
    for verdict in (*revisions, *offline):
        assert (verdict["category"], verdict["culprit_ranks"]) == ("missing_rank", [1])
    for last in (revisions[-1], offline[0]):
        assert last["stuck_on"] == "host"
        assert last["call_sites"]["1"].endswith(" idle")
        assert told in whole_text(last)


@pytest.mark.long
def test_a_rank_that_somebody_stopped_stays_dead_when_its_peers_are_stopped(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "stopped_alone")
    assert len({revision["id"] for revision in [*revisions, *offline]}) == 1
    # On a busy machine, that the others wait can be reported before the end of rank 1.
    since_its_end = list(dropwhile(lambda revision: revision["category"] == "missing_rank", revisions))
    assert since_its_end
    for verdict in (*since_its_end, *offline):
        assert (verdict["category"], verdict["culprit_ranks"], verdict["stuck_on"]) == ("rank_dead", [1], None)
        assert "SIGTERM" in whole_text(verdict)


@pytest.mark.long
def test_a_timeout_below_the_stall_time_names_the_missing_rank_at_once(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "short_timeout")
    assert len({revision["id"] for revision in [*revisions, *offline]}) == 1
    for verdict in (*revisions, *offline):
        assert (verdict["category"], verdict["culprit_ranks"]) == ("missing_rank", [1])


@pytest.mark.long
def test_ranks_that_exit_with_status_1_after_everything_was_done_are_no_fault(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "ends.py", "status_1_at_the_end", env=torchrun.endpoint(running))
    assert job.returncode == 1
    assert running.lines() == []
    status, report = job.analyze()
    assert (status, report["incidents"]) == (0, [])


@pytest.mark.long
def test_a_rank_that_destroyed_its_groups_had_left(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "left")
    for verdict in (revisions[-1], *offline):
        assert (verdict["category"], verdict["culprit_ranks"], verdict["stuck_on"]) == ("missing_rank", [1], None)
        assert "destroy_process_group" in whole_text(verdict)


def test_a_rank_that_exits_while_others_wait_is_told_with_its_message(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "exit_message")
    for verdict in (revisions[-1], *offline):
        assert (verdict["category"], verdict["culprit_ranks"]) == ("rank_dead", [1])
        assert "no samples left on this rank" in whole_text(verdict)
        assert "ends.py" in verdict["call_sites"]["1"]


@pytest.mark.long
def test_a_rank_whose_exit_is_blocked_is_exiting(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "exiting")
    assert "no samples left on this rank" in whole_text(revisions[0])
    for verdict in (*revisions, *offline):
        assert (verdict["category"], verdict["culprit_ranks"], verdict["stuck_on"]) == ("missing_rank", [1], None)
    for last in (revisions[-1], offline[0]):
        assert "no samples left on this rank" in whole_text(last)


@pytest.mark.long
def test_the_launcher_s_signal_does_not_hide_the_exception_before_it(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "raised_and_exiting")
    for verdict in (*revisions, *offline):
        assert (verdict["category"], verdict["culprit_ranks"]) == ("rank_dead", [1])
        assert "ValueError: bad sample 4711" in whole_text(verdict)
        assert "ends.py" in verdict["call_sites"]["1"]


@pytest.mark.long
def test_a_job_that_goes_on_after_a_wait_that_a_rank_gave_up_has_no_fault_in_the_end(tmp_path: Path) -> None:
    """Rank 1 waits for a message that never comes, catches the timeout, and the job ends well."""
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "ends.py", "gave_up_and_went_on", env=torchrun.endpoint(running))
    assert job.returncode == 0
    states: dict[str, list[str]] = {}
    for revision in cause_incidents(running.lines()):
        assert revision["culprit_ranks"] == [0]
        states.setdefault(revision["id"], []).append(revision["state"])
    assert [history[-1] for history in states.values()] == ["resolved"]
    status, report = job.analyze()
    assert (status, report["incidents"]) == (0, [])
