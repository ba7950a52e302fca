"""Real jobs in which one rank goes astray, and whose programs tell of no decision: the incident says in what, live and
from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import until
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

FAULTS = {
    # A compilation that takes long, of a batch of another shape.
    "compile": (
        "torch.compile=forward: tensor 'x' size mismatch at index 0. expected 4, actual 5 at step 12; ",
        " none",
    ),
    # A branch without one of the step's collectives. All meet one for another, up to the end of the loop.
    "branch": ("calls in default_pg (0)=1 at step 12; ", " 2"),
}


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_rank_did_otherwise_is_named(fault: str, tmp_path: Path) -> None:
    texts = FAULTS[fault]
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_STALL_SECONDS": "1"}
        job = torchrun.run(tmp_path / "job", "noticed_decisions.py", fault, str(tmp_path), nproc=4, env=env)
        live = until(lambda: [one for one in running.causes() if all(text in whole_text(one) for text in texts)])
    _, report = job.analyze()
    (offline,) = cause_incidents(report["incidents"])
    for incident in (live[0], offline):
        assert incident["culprit_ranks"] == [2], incident["summary"]
        for text in texts:
            assert text in whole_text(incident)


@pytest.mark.long
def test_what_healthy_ranks_do_otherwise_raises_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        job = torchrun.run(tmp_path / "job", "noticed_decisions.py", "healthy", str(tmp_path), nproc=4, env=env)
        assert job.returncode == 0, job.output
        assert running.causes() == []
