"""Real torchrun jobs over the end of the collector, and over torchrun's own restart of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from urllib.request import urlopen

from tests.support import torchrun
from tests.support.paths import JOBS

pytestmark = [
    *torchrun.needed,
]


def listed(running: torchrun.Collector) -> list[dict[str, object]]:
    with urlopen(f"http://{running.http}/api/v1/incidents", timeout=5) as answer:
        found: list[dict[str, object]] = json.load(answer)["incidents"]
        return found


def reports(running: torchrun.Collector) -> float:
    """How many rank reports the collector has taken in."""
    with urlopen(f"http://{running.http}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    name = 'otel_fr_collector_reports_total{outcome="accepted"} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_a_real_hang_outlives_the_collector_and_resolves_when_the_job_goes_on(tmp_path: Path) -> None:
    shard, data = tmp_path / "shard", ("--data", str(tmp_path / "data"))
    with torchrun.collector(tmp_path / "1", *data) as first:
        (tmp_path / "job").mkdir()
        job = torchrun.start(tmp_path / "job", "late.py", str(shard), env=torchrun.endpoint(first))
        try:
            assert torchrun.wait_until(first.causes, 60), first.log.read_text()
            (opened,) = first.causes()
            assert (opened["category"], opened["culprit_ranks"], opened["waiting_ranks"]) == (
                "missing_rank",
                [1],
                [0, 2],
            )
            first.process.kill()
            first.process.wait()
            with torchrun.collector(tmp_path / "2", *data, at=first) as second:
                assert [(one["id"], one["state"]) for one in listed(second)] == [(opened["id"], "firing")]
                # Each rank reports once a second, as soon as its monitor has found its way back.
                assert torchrun.wait_until(lambda: reports(second) >= 12, 45), second.log.read_text()
                assert second.incidents() == []
                assert [one["culprit_ranks"] for one in listed(second)] == [[1]]
                shard.touch()
                assert torchrun.wait_until(second.causes), second.log.read_text()
                (closed,) = second.causes()
                assert (closed["id"], closed["state"]) == (opened["id"], "resolved")
                output, _ = job.communicate(timeout=60)
                assert job.returncode == 0, output
                assert len(second.incidents_file.read_text().splitlines()) == 1
        finally:
            job.kill()
            job.wait()


def test_torchruns_restart_closes_the_incident_of_the_attempt_before(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        command = [str(torchrun.BIN / "torchrun"), "--standalone", "--nproc_per_node=3", "--max-restarts=1"]
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
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        assert torchrun.wait_until(lambda: running.causes() and running.causes()[0]["state"] == "resolved"), (
            running.causes()
        )
        (incident,) = running.causes()
        assert (incident["category"], incident["culprit_ranks"], incident["attempt"]) == ("rank_dead", [1], 0)
        assert "bad sample 4711" in str(incident["summary"])
