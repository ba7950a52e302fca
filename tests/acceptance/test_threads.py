"""Real torchrun jobs in which background threads raise: evidence about their rank, and never its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

METRICS = "its thread metrics raised OSError: no route to the metrics server"
CASES = {
    # case: category, culprits, texts of the summary
    "prefetch": ("missing_rank", [1], ["its thread prefetch raised ValueError: bad sample 4711 at "]),
    "main_raises_later": ("rank_dead", [0], ["rank 0 raised KeyError: 'lr'", METRICS]),
    "ends_process": ("rank_dead", [0], ["rank 0 exited with code 3", METRICS]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_exception_of_a_thread_is_told_and_blames_no_rank(case: str, tmp_path: Path) -> None:
    category, culprits, texts = CASES[case]
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "threads.py", case, env=torchrun.endpoint(running))
        assert wait_for(running.causes), running.err_file.read_text() + job.output
    live = running.causes()
    offline = cause_incidents(job.analyze()[1]["incidents"])
    for incidents in (live, offline):
        assert [(incident["category"], incident["culprit_ranks"]) for incident in incidents] == [(category, culprits)]
        for text in texts:
            assert text in whole_text(incidents[0])
        assert case != "prefetch" or "metrics" not in whole_text(incidents[0])


def test_a_job_with_a_failed_thread_that_ends_well_raises_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(
            tmp_path / "job", "threads.py", "ends_well", env=torchrun.endpoint(running, torchrun.UNHURRIED)
        )
    assert job.returncode == 0, job.output
    assert running.incidents() == []
    assert not job.files()
