"""Process groups that ranks destroy, in torchrun jobs: in any order without harm, and too early."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for
from tests.support.whole_text import whole_text

pytestmark = [*torchrun.needed, pytest.mark.long]


def test_groups_that_ranks_destroy_in_their_own_time_raise_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        job = torchrun.run(tmp_path / "job", "destroys.py", "healthy", env=env)
    assert job.returncode == 0, job.output
    assert running.incidents() == []


def test_a_rank_that_others_still_need_is_named_live_and_from_the_files(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "destroys.py", "destroys_early", env=torchrun.endpoint(running))
        assert wait_for(running.causes), running.err_file.read_text() + job.output
        live = running.causes()
    _, report = job.analyze()
    for (incident,) in (live, cause_incidents(report["incidents"])):
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
        assert re.search(r"destroy_process_group at \S*destroys\.py:\d+ close", whole_text(incident))
