"""Real torchrun jobs with a rank that is stuck: what the kernel says of it is in the incident and in the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_fr.dumps.read import load
from tests.support import torchrun
from tests.support.waiting import until

pytestmark = torchrun.needed

WORDS = {
    "stopped": ("rank_stuck", "its Python threads do not run: it is stopped by a signal (SIGSTOP)"),
    "fifo": ("missing_rank", "it is reading {folder}/samples"),
    "connect": ("missing_rank", "it is connecting to {address}"),
    "gil": ("rank_stuck", "its Python threads do not run (GIL held in C code); it is sleeping"),
}


@pytest.mark.parametrize("fault", WORDS)
def test_the_incident_says_what_the_stuck_rank_is_doing(tmp_path: Path, fault: str) -> None:
    category, words = WORDS[fault]
    with torchrun.collector(tmp_path / "collector") as running:
        (tmp_path / "job").mkdir()
        job = torchrun.start(tmp_path / "job", "stuck.py", fault, str(tmp_path), env=torchrun.endpoint(running))

        def told() -> list[dict[str, Any]]:
            return [one for one in running.causes() if words.partition("{")[0] in one["summary"]]

        (incident,) = until(told)
        job.communicate(timeout=60)
    address = (tmp_path / "address").read_text() if fault == "connect" else ""
    assert (incident["category"], incident["culprit_ranks"]) == (category, [1]), incident["summary"]
    assert words.format(folder=tmp_path, address=address) in incident["summary"]
    (found,) = [load(path) for path in (tmp_path / "job" / "dumps").glob("otel_fr_rank_1")]
    assert found.text("doing").split(" (")[0] in incident["summary"]
