"""Real torchrun jobs that create their process groups again with other ranks: the present ranks are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for

pytestmark = torchrun.needed


@pytest.mark.parametrize(("case", "culprit"), [("turned", 1), pytest.param("leaves", 0, marks=pytest.mark.long)])
def test_the_present_number_of_the_rank_that_hangs_is_named(case: str, culprit: int, tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "sessions.py", case, str(culprit), env=torchrun.endpoint(running))
        assert wait_for(running.causes), running.err_file.read_text() + job.output
    live = running.causes()
    offline = cause_incidents(job.analyze()[1]["incidents"])
    for incidents in (live, offline):
        assert [(found["category"], found["culprit_ranks"]) for found in incidents] == [("missing_rank", [culprit])]
        assert "sessions.py" in incidents[0]["call_sites"][str(culprit)]
        assert "hang" in incidents[0]["call_sites"][str(culprit)]
        assert incidents[0]["sequence_id"] == 7
    assert live[0]["id"] == offline[0]["id"]
