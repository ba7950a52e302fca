"""A collector that does not get to read what a job's ranks send names the culprit in the end, and nobody else."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.collector_process import Collector
from tests.support.flooder import flooding
from tests.support.tenants import READER, As, tokens_file
from tests.support.waiting import until

pytestmark = torchrun.needed

BLOCKED = 6.0
"""Seconds for which the collector does not run: more than a stalled rank is waited for, and than a silent one."""


@contextlib.contextmanager
def job(folder: Path, running: Collector, **more: str) -> Iterator[None]:
    """Four ranks, which come to the faulty collective within 1.5 s, three seconds after the first."""
    folder.mkdir()
    arguments = ("one_by_one.py", "30", "0.5")
    process = torchrun.start(folder, *arguments, nproc=4, env={**torchrun.endpoint(running), **more})
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)
        process.kill()
        process.communicate()


def running_ranks(running: Collector, **headers: str) -> int:
    jobs: list[dict[str, Any]] = json.loads(running.fetch("/api/v1/jobs", **headers).body)["jobs"]
    return max((one["ranks"].get("running", 0) for one in jobs if one["job"].endswith("mine")), default=0)


def named(running: Collector) -> set[tuple[int, ...]]:
    """The culprits of all causes of the job, at any time."""
    mine = [one for one in running.lines() if one["job"].endswith("mine") and one["caused_by"] is None]
    return {tuple(one["culprit_ranks"]) for one in mine}


@pytest.mark.long
def test_a_collector_that_was_stopped_for_a_while_names_no_innocent_rank(tmp_path: Path) -> None:
    with torchrun.collector(tmp_path / "collector") as running, job(tmp_path / "job", running, OTEL_FR_JOB_ID="mine"):
        until(lambda: running_ranks(running) == 4)
        running.process.send_signal(signal.SIGSTOP)
        time.sleep(BLOCKED)  # what is tested is this time
        running.process.send_signal(signal.SIGCONT)
        until(lambda: named(running))
        found = named(running)
    assert found | named(running) == {(2,)}


@pytest.mark.long
def test_a_collector_that_is_flooded_names_no_innocent_rank(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {READER}"}
    ((name, token),) = As.metadata("team-b")
    mine = {"OTEL_FR_JOB_ID": "team-b/mine", "OTEL_EXPORTER_OTLP_HEADERS": f"{name}={token.replace(' ', '%20')}"}
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(torchrun.collector(tmp_path / "collector", "--quiet", *tokens_file(tmp_path)))
        stack.enter_context(job(tmp_path / "job", running, **mine))
        until(lambda: running_ranks(running, **headers) == 4)
        with flooding(running, senders=4):
            until(lambda: named(running))
        found = named(running)
    assert found == {(2,)}
