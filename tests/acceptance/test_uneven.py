"""Real jobs with uneven data: incident and files name the rank that left the loop, and its first call elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.paths import JOBS
from tests.support.verdicts import cause_incidents
from tests.support.waiting import until
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

PROGRAM = JOBS / "uneven.py"


def line_of(part: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if part in line)


LOOP = f"{PROGRAM}:{line_of('for batch in')}-{line_of('        average(model)')} main"
LEFT = f"rank 2 has left the loop at {LOOP}, in which ranks 0, 1 wait"
ELSEWHERE = (
    f"the first call that rank 2 made elsewhere: number 9 of group default_pg (0), at {PROGRAM}:"
    f"{line_of('all_reduce(parameter.grad)')} average; the others at {PROGRAM}:{line_of('all_reduce(loss')} main"
)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "texts"), [("skips", [LEFT, ELSEWHERE]), ("early", [LEFT])])
def test_what_a_rank_did_otherwise_is_said(kind: str, texts: list[str], tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, 1.0)
        with torchrun.started(tmp_path / "job", "uneven.py", kind, str(tmp_path), env=env) as process:
            (live,) = until(lambda: [one for one in running.causes() if all(text in whole_text(one) for text in texts)])
            (tmp_path / "go").touch()
            job = process.wait()
    (offline,) = cause_incidents(job.analyze()[1]["incidents"])
    for incident in (live, offline):
        assert incident["culprit_ranks"] == [2], incident["summary"]
        assert all(text in whole_text(incident) for text in texts), whole_text(incident)
