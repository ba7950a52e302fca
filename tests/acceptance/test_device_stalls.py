"""Jobs on NCCL whose devices stand still: real monitors of played ranks, and a real collector.

NCCL needs GPUs, so what PyTorch's recorder in each rank shows is made, in the form that it has (`worker_server`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGABRT
from typing import Any

import pytest

from tests.support.collector_process import Collector, start
from tests.support.commands import otel_fr
from tests.support.monitored_rank import Played, play
from tests.support.ras_server import RasServer, answer, communicator, missing, ras_server
from tests.support.ras_server import rank as answering
from tests.support.rings import RANKS
from tests.support.waiting import wait_for
from tests.support.worker_server import FakeWorkerServer, begun, ended, worker_server

STALL = "2"


@dataclass
class Job:
    ranks: list[Played]
    recorders: list[FakeWorkerServer]
    collector: Collector
    ras: RasServer

    def enqueue(self, n: int, ranks: tuple[int, ...] = RANKS) -> None:
        for rank in ranks:
            self.ranks[rank].do("issue", n=n, complete="unknown", backend="nccl")

    def show(self, *shown: dict[str, Any], ranks: tuple[int, ...] = RANKS) -> None:
        """What the recorders of these ranks hold from now on: also of calls that are about to be enqueued."""
        later = time.time_ns() + 60_000_000_000
        for rank in ranks:
            self.recorders[rank].show(*[{**item, "time_created_ns": later} for item in shown])

    def states(self) -> dict[str, int]:
        """How many ranks are in each state."""
        (job,) = json.loads(self.collector.get("/api/v1/jobs"))["jobs"]
        found: dict[str, int] = job["ranks"]
        return found

    def cause(self) -> dict[str, Any]:
        return self.collector.wait_cause(lambda incident: incident["state"] == "firing")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(start(tmp_path, 0))
        ras = stack.enter_context(ras_server())
        job = Job([], [], collector, ras)
        for rank in RANKS:
            folder = tmp_path / f"rank{rank}"
            folder.mkdir()
            job.recorders.append(stack.enter_context(worker_server(folder / "recorder")))
            env = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.grpc}",
                "RANK": str(rank),
                "BACKEND": "nccl",
                "RECORDER": str(folder / "recorder"),
                "OTEL_FR_STALL_SECONDS": STALL,
                "NCCL_RAS_ADDR": "{}:{}".format(*ras.address),
            }
            job.ranks.append(stack.enter_context(play(folder, env)))
        assert wait_for(lambda: collector.metric("otel_fr_collector_ranks") == len(RANKS))
        yield job


@pytest.mark.long
def test_an_incident_has_what_nccl_itself_says_beside_the_verdict(job: Job) -> None:
    pids = [rank.process.pid for rank in job.ranks]
    answered = [answering(number, pid) for number, pid in enumerate(pids[:3])]
    job.ras.text = answer(communicator(answered, [missing(3, pids[3])]), timeouts=1)
    job.show(ended(1), begun(2))
    job.enqueue(2)
    cause = job.collector.wait_cause(lambda incident: incident["nccl_ras"] is not None)
    assert (cause["category"], cause["culprit_ranks"]) == ("stalled_collective", []), "no verdict rests on it"
    said = cause["nccl_ras"]
    assert said["lines"] == [
        "group default_pg (0): rank 3 did not answer",
        "some processes did not answer in time (1 timeout)",
    ]
    assert said["version"] == "2.28.9"
    assert cause["waiting_since"] <= said["asked_at"]
    shown = otel_fr("incidents", "show", cause["id"], "--collector", job.collector.http).stdout
    assert "NCCL's RAS" in shown
    assert "rank 3 did not answer" in shown
    assert "group default_pg (0): rank 3 did not answer" in job.collector.out_file.read_text()


@pytest.mark.long
def test_the_rank_whose_device_failed_is_named_and_those_that_nccl_ended_for_it_are_not(job: Job) -> None:
    job.show(ended(1), begun(2))
    job.enqueue(2)
    assert job.cause()["category"] == "stalled_collective"
    failed = job.ranks[2]
    failed.do("record_exception", type="torch.AcceleratorError", message="CUDA error: misaligned address")
    failed.end("leave", code=1)
    for rank in (0, 1, 3):
        job.ranks[rank].end("die", number=int(SIGABRT))
    assert wait_for(lambda: job.states() == {"raised": 1, "killed": 3})
    cause = job.collector.wait_cause(lambda one: one["category"] == "rank_dead")
    assert (cause["category"], cause["culprit_ranks"]) == ("rank_dead", [2])
    assert "CUDA error: misaligned address" in cause["summary"]
    (last,) = [one for one in job.collector.causes() if one["state"] == "firing"]
    assert last["culprit_ranks"] == [2]
