"""A site's own OpenTelemetry Collector between the job and ours: the same incident."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import torchrun
from tests.support.external_programs import OTELCOL, needs_otelcol, started
from tests.support.ports import free_address, wait_for_port
from tests.support.waiting import until

pytestmark = [
    *torchrun.needed,
    needs_otelcol,
]


@pytest.mark.long
def test_a_job_behind_another_collector_is_explained_alike(tmp_path: Path) -> None:
    between = free_address()
    with torchrun.collector(tmp_path / "collector") as running:
        command = (str(OTELCOL), "--config", str(Path(__file__).with_name("otelcol.yaml")))
        env = {"RECEIVE": between, "SEND": running.grpc}
        with started(tmp_path / "otelcol.log", *command, env=env) as process:
            wait_for_port(between, process)
            settings = {**torchrun.endpoint(running), "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{between}"}
            torchrun.run(tmp_path / "job", "fault.py", "missing", env=settings)
            (incident,) = until(running.causes)
    assert (incident["category"], incident["culprit_ranks"], incident["sequence_id"]) == ("missing_rank", [1], 2)
    assert "in idle" in incident["stacks"]["1"]
