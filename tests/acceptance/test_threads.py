"""Real torchrun jobs in which background threads raise: evidence about their rank, and never its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import PATIENCE, until, wait_for
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed


def test_the_exception_of_a_thread_is_told_and_blames_no_rank(tmp_path: Path) -> None:
    """Rank 1 is missing, so its exception is told; the one in rank 0 is not."""
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "threads.py", "prefetch", env=torchrun.endpoint(running))
        assert wait_for(running.causes), running.err_file.read_text() + job.output
    for (incident,) in (running.causes(), cause_incidents(job.analyze()[1]["incidents"])):
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
        text = whole_text(incident)
        assert "thread prefetch" in text
        assert "ValueError: bad sample 4711" in text
        assert "metrics" not in text


@pytest.mark.long
def test_a_rank_whose_threads_share_a_group_is_told(tmp_path: Path) -> None:
    """A checkpoint is written beside the training, over the same group: which call comes first is left to chance."""
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "threads.py", "shares_group", env=torchrun.endpoint(running))
        live = until(lambda: [one for one in running.causes() if "thread saver" in whole_text(one)])
    offline = cause_incidents(job.analyze()[1]["incidents"])
    for (incident,) in (live, offline):
        assert (incident["category"], incident["culprit_ranks"]) == ("op_mismatch", [0])
        assert "in the main thread and thread saver" in whole_text(incident)


@pytest.mark.long
@pytest.mark.parametrize("case", ["trains_in_thread", "checkpoints_in_thread"])
def test_where_a_rank_is_is_where_the_thread_is_that_issues_its_calls(case: str, tmp_path: Path) -> None:
    """Ray Train keeps the main thread for itself. A thread that only writes checkpoints does not count."""
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.start(tmp_path, "threads.py", case, env=torchrun.endpoint(running))
        (live,) = until(lambda: [one for one in running.causes() if len(one["stack_groups"]) == 2])
        job.communicate(timeout=PATIENCE)
    assert (live["category"], live["culprit_ranks"]) == ("missing_rank", [1]), live["summary"]
    assert live["waiting_ranks"] == [0, 2]
    assert live["call_sites"]["1"].endswith(" load_shard")
    assert "reading a pipe" in whole_text(live)
    assert [group["ranks"] for group in live["stack_groups"]] == [[0, 2], [1]]
    waiting, culprit = (" ".join(group["frames"]) for group in live["stack_groups"])
    assert "threads.py" in waiting
    assert " train" in waiting
    assert culprit.endswith(" load_shard")
