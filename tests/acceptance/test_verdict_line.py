"""The verdict in the output of real torchrun jobs: one line if they fail or hang, and none otherwise."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.waiting import PATIENCE, wait_for

pytestmark = torchrun.needed

ALONE = {"OTEL_FR_ENABLED": "1", "OTEL_FR_STALL_SECONDS": "4"}
"""Environment without a collector. The jobs wait for less than four times this stall time."""


def said(output: str) -> list[str]:
    """Return the lines about the verdict."""
    return [line for line in output.splitlines() if re.match(r"otel-fr: |.*: this job hangs: ", line)]


def test_a_failed_job_ends_with_one_verdict(tmp_path: Path) -> None:
    job = torchrun.run(tmp_path, "faults.py", "killed", env=ALONE)
    assert job.returncode == 1
    verdict, files = said(job.output)
    assert verdict.startswith("otel-fr: verdict: rank_dead: ")
    assert "rank 1 was killed by signal 9 (SIGKILL)" in verdict
    assert files == f"otel-fr: files of ranks 0-2; to read them: otel-fr analyze {job.dumps}"
    status, report = job.analyze()
    assert status == 1
    assert report["incidents"][0]["summary"] in verdict, "the same as from the files"


@pytest.mark.long
def test_the_verdict_is_said_although_other_ranks_ended_cleanly_just_before(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running:
        job = torchrun.run(tmp_path / "job", "faults.py", "killed_last", env=torchrun.endpoint(running, 4))
    assert job.returncode == 1
    verdict, _ = said(job.output)
    assert "killed by signal 9 (SIGKILL)" in verdict


@pytest.mark.long
def test_a_hang_is_told_while_it_lasts_without_a_collector(tmp_path: Path) -> None:
    job = torchrun.run(tmp_path, "faults.py", "missing", env={**ALONE, "OTEL_FR_STALL_SECONDS": "0.5"})
    hang = [line for line in said(job.output) if "this job hangs" in line]
    assert len(hang) == 1, job.output
    assert "rank 1 " in hang[0]
    assert "rank 1 is " in hang[0], "the rank that the others wait for has been asked for its file"
    assert said(job.output)[-2].startswith("otel-fr: verdict: missing_rank: rank 1 ")


@pytest.mark.long
def test_a_token_that_is_not_known_is_told_once(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("the-token-of-somebody-else write *\n")
    with torchrun.collector(tmp_path / "collector", "--tokens", str(tokens)) as running:
        header = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20no-token-of-this-site"}
        job = torchrun.run(tmp_path / "job", "healthy.py", "calls", env={**torchrun.endpoint(running, 4), **header})
    assert job.returncode == 0
    assert job.output.count("no commands from the collector: the token is not known") == 1


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_its_user_stops_says_nothing(number: signal.Signals, tmp_path: Path) -> None:
    process = torchrun.start(tmp_path, "works.py", env=ALONE)
    try:
        assert wait_for(lambda: len(list(tmp_path.glob("works-*"))) == 3)
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode != 0
    assert said(output) == []
