"""A real job whose ranks have data of different lengths: the incident says who left the loop, live and from files."""

from __future__ import annotations

from pathlib import Path

from tests.support import torchrun
from tests.support.paths import JOBS
from tests.support.verdicts import cause_incidents
from tests.support.waiting import until
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed


def test_a_rank_with_a_batch_fewer_is_said_to_have_left_the_loop(tmp_path: Path) -> None:
    lines = (JOBS / "uneven.py").read_text().splitlines()
    first = next(at for at, line in enumerate(lines, 1) if "for batch in" in line)
    last = next(at for at, line in enumerate(lines, 1) if "optimizer.step()" in line)
    loop = f"{JOBS / 'uneven.py'}:{first}-{last} main"
    with torchrun.collector(tmp_path / "collector") as running:
        env = torchrun.endpoint(running, 1.0)
        job = torchrun.run(tmp_path / "job", "uneven.py", str(tmp_path), env=env)
        (live,) = until(lambda: [one for one in running.causes() if loop in whole_text(one)])
    (offline,) = cause_incidents(job.analyze()[1]["incidents"])
    for incident in (live, offline):
        assert incident["culprit_ranks"] == [2], incident["summary"]
        assert f"rank 2 has left the loop at {loop}, in which ranks 0, 1 wait" in whole_text(incident)
