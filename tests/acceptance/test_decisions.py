"""Real jobs in which one rank decides differently from its peers. The incident names the decision, as do the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.verdicts import cause_incidents
from tests.support.waiting import PATIENCE, until
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

UNTOLD = {
    "compile": (
        "torch.compile=forward: tensor 'x' size mismatch at index 0. expected 4, actual 5 at step 12; ",
        " none",
    ),
    "branch": ("calls in default_pg (0)=1 at step 12; ", " 2"),
}


def test_what_differed_is_named_where_the_job_continues_with_wrong_numbers(tmp_path: Path) -> None:
    """No span is sent, and no rank stalls: the collector asks the ranks for their calls and files."""
    text = "clips=True at step 12; the others False"
    sampler = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED) | sampler
        process = torchrun.start(tmp_path, "decisions.py", "told", str(tmp_path), env=env)
        try:
            (incident,) = until(lambda: [one for one in running.causes() if text in whole_text(one)])
            assert process.poll() is None, "the job must still run when the incident is updated"
            questions = running.metric("otel_fr_collector_disagreements_total", outcome="mismatch")
        finally:
            (tmp_path / "stop").touch()
            output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert (incident["category"], incident["culprit_ranks"]) == ("reduce_op_mismatch", [1])
    assert incident["sequence_id"] == 2 * 12 + 1
    assert "decisions.py" in incident["call_sites"]["1"]
    assert "writes_log" not in whole_text(incident)
    assert questions == 1.0


@pytest.mark.long
@pytest.mark.parametrize("kind", UNTOLD)
def test_what_a_rank_did_otherwise_is_noticed(kind: str, tmp_path: Path) -> None:
    texts = UNTOLD[kind]
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, 1.0)
        job = torchrun.run(tmp_path / "job", "decisions.py", kind, str(tmp_path), nproc=4, env=env)
        (live,) = until(lambda: [one for one in running.causes() if all(text in whole_text(one) for text in texts)])
    (offline,) = cause_incidents(job.analyze()[1]["incidents"])
    for incident in (live, offline):
        assert incident["culprit_ranks"] == [2], incident["summary"]
        assert all(text in whole_text(incident) for text in texts)


@pytest.mark.long
def test_what_healthy_ranks_do_otherwise_raises_nothing(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        job = torchrun.run(tmp_path / "job", "decisions.py", "healthy", str(tmp_path), nproc=4, env=env)
        assert job.returncode == 0, job.output
        assert running.causes() == []
