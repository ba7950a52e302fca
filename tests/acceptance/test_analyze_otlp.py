"""Files become a trace in a real Jaeger: `otel-fr analyze --otlp`."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_fr.analyze import load
from tests.support.commands import otel_fr
from tests.support.external_programs import needs_jaeger
from tests.support.jaeger import Jaeger, tags
from tests.support.ports import free_port
from tests.support.torch_files import one_missing
from tests.support.waiting import wait_for


@needs_jaeger
@pytest.mark.long
def test_the_incident_and_the_ranks_calls_are_one_trace(tmp_path: Path, jaeger: Jaeger) -> None:
    folder = one_missing(tmp_path)
    done = otel_fr("analyze", folder, "--otlp", f"http://{jaeger.otlp}")
    assert done.returncode == 1
    assert "sent 1 trace to" in done.stderr, done.stderr
    (incident,) = load(folder).incidents
    trace_id = str(incident["trace_id"])
    assert wait_for(lambda: len(jaeger.spans(trace_id)) == 5)
    spans = jaeger.spans(trace_id)
    (root,) = [span for span in spans if not span["references"]]
    assert root["operationName"] == "INCIDENT missing_rank: rank 2 (from files)"
    assert tags(root)["torch.incident.category"] == "missing_rank"
    (culprit,) = [span for span in spans if span["operationName"].startswith("rank 2: not here")]
    children = [span for span in spans if span["references"] and span is not culprit]
    assert sorted(int(str(tags(span)["torch.rank"])) for span in children) == [0, 1, 3]
    for span in children:
        assert span["references"][0]["spanID"] == root["spanID"]
        shown = tags(span)
        assert (shown["torch.collective.state"], shown["torch.collective.sequence_id"]) == ("scheduled", 3)
        assert (shown["code.file.path"], shown["code.line.number"]) == ("/job/train.py", 42)


def test_an_unreachable_endpoint_is_reported_and_the_verdict_still_printed(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    done = otel_fr("analyze", one_missing(tmp_path), "--otlp", endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert done.returncode == 2
    assert done.stdout.startswith("missing_rank: rank 2")
    assert f"otel-fr analyze: --otlp {endpoint}: " in done.stderr


def test_what_is_not_an_endpoint_is_rejected_before_files_are_read(tmp_path: Path) -> None:
    for endpoint in ("localhost:4317", "http://127.0.0.1:notaport", "http://"):
        done = otel_fr("analyze", one_missing(tmp_path), "--otlp", endpoint)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"otel-fr analyze: --otlp: '{endpoint}' is not an endpoint such as http://localhost:4317" in done.stderr
