"""Files become a trace in a real Jaeger: `otel-fr analyze --otlp`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_fr.analyze import load
from tests.acceptance.test_jaeger import JAEGER, _tags, _trace, jaeger  # noqa: F401 - a fixture
from tests.support import torchrun
from tests.support.ports import free_port
from tests.support.torch_files import one_missing


def analyze(folder: Path, endpoint: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "otel_fr.cli", "analyze", str(folder), "--otlp", endpoint]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})


@pytest.mark.skipif(not JAEGER, reason="no Jaeger here (neither JAEGER_BIN nor jaeger on PATH)")
def test_the_incident_and_the_ranks_calls_are_one_trace(tmp_path: Path, jaeger: tuple[str, str]) -> None:  # noqa: F811
    otlp, query = jaeger
    folder = one_missing(tmp_path)
    done = analyze(folder, f"http://{otlp}")
    assert done.returncode == 1
    assert "sent 1 trace to" in done.stderr, done.stderr
    (incident,) = load(folder).incidents
    trace_id = str(incident["trace_id"])
    assert torchrun.wait_until(lambda: len(_trace(query, trace_id)) == 4)
    spans = _trace(query, trace_id)
    (root,) = [span for span in spans if not span["references"]]
    assert root["operationName"] == "all_reduce default_pg"
    assert _tags(root)["torch.incident.category"] == "missing_rank"
    children = [span for span in spans if span["references"]]
    assert sorted(int(str(_tags(span)["torch.rank"])) for span in children) == [0, 1, 3]
    for span in children:
        assert span["references"][0]["spanID"] == root["spanID"]
        tags = _tags(span)
        assert (tags["torch.collective.state"], tags["torch.collective.sequence_id"]) == ("scheduled", 3)
        assert (tags["code.file.path"], tags["code.line.number"]) == ("/job/train.py", 42)


def test_an_endpoint_that_is_none_is_told_and_the_verdict_still_printed(tmp_path: Path) -> None:
    folder = one_missing(tmp_path)
    for endpoint in ("localhost:4317", "http://127.0.0.1:notaport", f"http://127.0.0.1:{free_port()}"):
        done = analyze(folder, endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1")
        assert done.returncode == 2
        assert done.stdout.startswith("missing_rank: rank 2")
        assert f"otel-fr analyze: --otlp {endpoint}: " in done.stderr
