"""Process groups that ranks destroy, in torchrun jobs: in any order without harm, too early, and for ever."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.engines import EACH_ENGINE
from tests.support.engines import settings as engine_settings
from tests.support.verdicts import cause_incidents
from tests.support.waiting import wait_for
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed

torch = pytest.importorskip("torch")
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
FAULTS = {
    "destroys_early": r"destroy_process_group at \S*destroys\.py:\d+ close",
    "hangs": r"destroy_process_group of group default_pg \(0\)",
}


@pytest.mark.long
@pytest.mark.parametrize("engine", EACH_ENGINE)
def test_groups_that_ranks_destroy_in_their_own_time_raise_nothing(engine: str, tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running, torchrun.UNHURRIED), **engine_settings(engine)}
        job = torchrun.run(tmp_path / "job", "destroys.py", "healthy", env=env)
    assert job.returncode == 0, job.output
    assert running.incidents() == []


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_others_still_need_is_named_live_and_from_the_files(fault: str, tmp_path: Path) -> None:
    if fault == "hangs" and VERSION < (2, 7):
        pytest.skip("on torch 2.6 a process group of gloo does not wait for what this job makes it wait for")
    with torchrun.collector(tmp_path / "collector") as running:
        env = {**torchrun.endpoint(running), "OTEL_FR_STALL_SECONDS": "2"}
        job = torchrun.run(tmp_path / "job", "destroys.py", fault, env=env)
        assert wait_for(running.causes), running.err_file.read_text() + job.output
        live = running.causes()
    _, report = job.analyze()
    for incidents in (live, cause_incidents(report["incidents"])):
        (incident,) = incidents
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
        assert re.search(FAULTS[fault], whole_text(incident))
