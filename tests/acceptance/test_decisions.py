"""A real job in which one rank decides otherwise and no rank stalls: its incident says in what."""

from __future__ import annotations

from pathlib import Path

from tests.support import torchrun
from tests.support.waiting import PATIENCE, until
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed


def test_what_differed_is_named_where_the_job_continues_with_wrong_numbers(tmp_path: Path) -> None:
    """The decisions come with the files that the collector asks for."""
    text = "clips=True at step 12; the others False"
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        process = torchrun.start(tmp_path, "decisions.py", str(tmp_path), env=env)
        try:
            (incident,) = until(lambda: [one for one in running.causes() if text in whole_text(one)])
            assert process.poll() is None, "the job must still run when the incident is updated"
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
    assert (incident["category"], incident["culprit_ranks"]) == ("reduce_op_mismatch", [1])
    assert "writes_log" not in whole_text(incident)
