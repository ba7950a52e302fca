"""Files of torch 2.14's FlightRecorderHook from real jobs. The hook may call a call retired that has not completed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import torchrun
from tests.support.commands import otel_fr

pytestmark = [
    *torchrun.needed,
    pytest.mark.skipif(
        not hasattr(torch._C._distributed_c10d, "FlightRecorderHook"), reason="this torch has no FlightRecorderHook"
    ),
]


def files(folder: Path, kind: str) -> Path:
    """Return the folder with the files of a job of three ranks."""
    dumps = folder / "files"
    dumps.mkdir()
    job = torchrun.run(
        folder, "hook_files.py", str(dumps), kind, env={"OTEL_FR_ENABLED": "0", "TORCH_FR_BUFFER_SIZE": "2000"}
    )
    assert job.returncode == 0, job.output
    return dumps


def without_backends(dumps: Path) -> None:
    """Leave only the hooks' records, as with a backend without a recorder."""
    for path in dumps.iterdir():
        data = pickle.loads(path.read_bytes())
        hooked = [entry for entry in data["entries"] if entry["profiling_name"].startswith("c10d:")]
        data["entries"] = [{**entry, "record_id": number} for number, entry in enumerate(hooked)]
        path.write_bytes(pickle.dumps(data, 2))


def analyze(dumps: Path) -> tuple[int, dict[str, Any]]:
    done = otel_fr("analyze", dumps, "--format", "json")
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def test_a_rank_that_does_not_join(tmp_path: Path) -> None:
    dumps = files(tmp_path, "missing")
    for number in (5, 2):  # gloo's, then the hook's
        status, report = analyze(dumps)
        assert status == 1
        (incident,) = report["incidents"]
        assert (incident["category"], incident["culprit_ranks"]) == ("missing_rank", [1])
        assert (incident["waiting_ranks"], incident["sequence_id"]) == ([0, 2], number)
        without_backends(dumps)


def test_a_healthy_job(tmp_path: Path) -> None:
    dumps = files(tmp_path, "healthy")
    for newest in (5, 2):
        status, report = analyze(dumps)
        assert (status, report["verdict"]) == (0, "no_fault")
        assert {max(group["enqueued"] for group in rank["groups"].values()) for rank in report["ranks"]} == {newest}
        without_backends(dumps)


def test_calls_of_several_tensors_are_legal(tmp_path: Path) -> None:
    dumps = files(tmp_path, "lists")
    for _ in ("gloo's", "the hook's"):
        status, report = analyze(dumps)
        assert (status, report["verdict"]) == (0, "no_fault"), report["summary"]
        without_backends(dumps)
