"""The chain to a real Jaeger: a hung job's collective is one trace there, with the missing rank named at its root."""

from __future__ import annotations

from pathlib import Path

from tests.support import torchrun
from tests.support.external_programs import needs_jaeger
from tests.support.jaeger import Jaeger, tags
from tests.support.waiting import until, wait_for

pytestmark = [
    *torchrun.needed,
    needs_jaeger,
]


def test_the_incident_is_the_root_of_the_ranks_spans(tmp_path: Path, jaeger: Jaeger) -> None:
    with torchrun.collector(tmp_path / "collector", "--forward", f"http://{jaeger.otlp}") as running:
        torchrun.run(tmp_path / "job", "fault.py", "missing", env=torchrun.endpoint(running))
        (incident,) = until(running.causes)
        trace_id = str(incident["trace_id"])
        # The root, and the two waiting ranks' spans, which end when their ranks do.
        assert wait_for(lambda: len(jaeger.spans(trace_id)) >= 3)
    spans = jaeger.spans(trace_id)
    (incident_span,) = [span for span in spans if "torch.incident.id" in tags(span)]
    root = tags(incident_span)
    assert root["error"] is True
    assert root["error.type"] == "missing_rank"
    assert "rank 1 did not join" in str(root["otel.status_description"])
    calls = [span for span in spans if span is not incident_span]
    assert sorted(span["operationName"] for span in calls) == [
        f"all_reduce default_pg [rank {rank}]" for rank in (0, 2)
    ]
    assert not any(span["warnings"] for span in spans)
