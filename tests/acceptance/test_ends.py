"""Real torchrun jobs whose ranks end in different ways: the verdict at each moment, and the same from the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed


def _run(folder: Path, how: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]], torchrun.Job]:
    """Run ends.py: every revision of every cause, the causes in the files, and the job."""
    with torchrun.collector(folder / "collector") as running:
        job = torchrun.run(folder / "job", "ends.py", how, env=torchrun.endpoint(running))
    _, report = job.analyze()
    return cause_incidents(running.lines()), cause_incidents(report["incidents"]), job


def test_the_abort_of_the_ranks_that_waited_does_not_hide_for_whom(tmp_path: Path) -> None:
    revisions, offline, job = _run(tmp_path, "watchdog")
    assert job.returncode != 0
    assert len(offline) == 1
    assert len({revision["id"] for revision in [*revisions, *offline]}) == 1
    for verdict in (*revisions, *offline):
        assert (verdict["category"], verdict["culprit_ranks"], verdict["stuck_on"]) == ("missing_rank", [1], "host")
        assert verdict["waiting_ranks"] == [0, 2]
        assert "ends.py" in verdict["call_sites"]["1"]
    # The stall of the others can be reported before the stack of rank 1, which waits for a look at the process.
    for last in (revisions[-1], offline[0]):
        assert "idle" in last["stacks"]["1"]
        assert "SIGABRT" in whole_text(last)
        assert "SIGTERM" in whole_text(last)


def test_a_rank_that_exits_while_others_wait_is_told_with_its_message(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "exit_message")
    for verdict in (revisions[-1], *offline):
        assert (verdict["category"], verdict["culprit_ranks"]) == ("rank_dead", [1])
        assert "no samples left on this rank" in whole_text(verdict)
        assert "ends.py" in verdict["call_sites"]["1"]


@pytest.mark.long
def test_the_launcher_s_signal_does_not_hide_the_exception_before_it(tmp_path: Path) -> None:
    revisions, offline, _ = _run(tmp_path, "raised_and_exiting")
    for verdict in (*revisions, *offline):
        assert (verdict["category"], verdict["culprit_ranks"]) == ("rank_dead", [1])
        assert "ValueError: bad sample 4711" in whole_text(verdict)
        assert "ends.py" in verdict["call_sites"]["1"]
