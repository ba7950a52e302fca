"""A site's own OpenTelemetry Collector between the job and ours: the same incident."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.ports import free_port

OTELCOL = os.environ.get("OTELCOL_BIN") or shutil.which("otelcol")

pytestmark = [
    *torchrun.needed,
    pytest.mark.skipif(not OTELCOL, reason="no OpenTelemetry Collector here (neither OTELCOL_BIN nor otelcol on PATH)"),
]


def test_a_job_behind_another_collector_is_explained_alike(tmp_path: Path) -> None:
    between = f"127.0.0.1:{free_port()}"
    with torchrun.collector(tmp_path / "collector") as running, open(tmp_path / "otelcol.log", "wb") as log:
        command = [str(OTELCOL), "--config", str(Path(__file__).with_name("otelcol.yaml"))]
        env = {**os.environ, "RECEIVE": between, "SEND": running.grpc}
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            torchrun.wait_for_port(between, process)
            settings = {**torchrun.endpoint(running), "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{between}"}
            torchrun.run(tmp_path / "job", "fault.py", "missing", env=settings)
            (incident,) = running.causes()
        finally:
            process.terminate()
            process.wait(15)
    assert (incident["category"], incident["culprit_ranks"], incident["sequence_id"]) == ("missing_rank", [1], 2)
    assert "in idle" in incident["stacks"]["1"]
