"""Real torchrun jobs over the end of the collector, and over torchrun's own restart of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.commands import BIN
from tests.support.paths import JOBS
from tests.support.waiting import PATIENCE, wait_for
from tests.support.whole_text import whole_text

pytestmark = torchrun.needed


def listed(running: Collector) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(running.get("/api/v1/incidents"))["incidents"]
    return found


def reports(running: Collector) -> float:
    """How many rank reports the collector has taken in."""
    return running.metric("otel_fr_collector_rank_reports_total", outcome="accepted")


@pytest.mark.long
def test_a_real_hang_outlives_the_collector_and_resolves_when_the_job_goes_on(tmp_path: Path) -> None:
    shard, data = tmp_path / "shard", ("--data", str(tmp_path / "data"))
    with torchrun.collector(tmp_path / "1", *data) as first:
        (tmp_path / "job").mkdir()
        job = torchrun.start(tmp_path / "job", "late.py", str(shard), env=torchrun.endpoint(first))
        try:
            assert wait_for(first.causes), first.err_file.read_text()
            (opened,) = first.causes()
            assert (opened["category"], opened["culprit_ranks"], opened["waiting_ranks"]) == (
                "missing_rank",
                [1],
                [0, 2],
            )
            first.kill()
            with torchrun.collector(tmp_path / "2", *data, at=first) as second:
                assert [(one["id"], one["state"]) for one in listed(second)] == [(opened["id"], "firing")]
                # Each rank reports once a second, as soon as its monitor has found its way back.
                assert wait_for(lambda: reports(second) >= 12), second.err_file.read_text()
                assert second.incidents() == []
                assert [one["culprit_ranks"] for one in listed(second)] == [[1]]
                shard.touch()
                assert wait_for(lambda: [one["state"] for one in second.causes()] == ["resolved"])
                (closed,) = second.causes()
                assert closed["id"] == opened["id"]
                output, _ = job.communicate(timeout=PATIENCE)
                assert job.returncode == 0, output
                assert {one["id"] for one in second.incidents()} == {opened["id"]}
        finally:
            job.kill()
            job.wait()


@pytest.mark.long
def test_torchruns_restart_closes_the_incident_of_the_attempt_before(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        command = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node=3", "--max-restarts=1"]
        environment = {
            **torchrun.base_environment(),
            **torchrun.endpoint(running),
            "OTEL_FR_DUMP_DIR": str(tmp_path / "dumps"),
        }
        done = subprocess.run(
            [*command, str(JOBS / "flaky.py"), str(tmp_path / "store")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        assert wait_for(lambda: running.causes() and running.causes()[0]["state"] == "resolved"), running.causes()
        (incident,) = running.causes()
        assert (incident["category"], incident["culprit_ranks"], incident["attempt"]) == ("rank_dead", [1], 0)
        assert "bad sample 4711" in whole_text(incident)
