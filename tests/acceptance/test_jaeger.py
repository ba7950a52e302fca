"""The chain to a real Jaeger: an SRE's view while a job hangs, when it continues, and from its files."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from otel_fr_collector.forward.jaeger import find_page

from tests.support import torchrun
from tests.support.commands import otel_fr
from tests.support.external_programs import get, load, needs_jaeger
from tests.support.jaeger import Jaeger, running_jaeger, tags
from tests.support.waiting import PATIENCE, until, wait_for

pytestmark = [
    *torchrun.needed,
    needs_jaeger,
]


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path) as started:
        yield started


def check_links(jaeger: Jaeger, incident: dict[str, Any], processes: dict[str, Any]) -> None:
    """Check that the page has deploy/'s links, and that the incident's span has all values of the links' addresses."""
    known = {tag["key"] for one in (incident, *processes.values()) for tag in one["tags"]}
    for pattern in load("jaeger/ui.json")["linkPatterns"]:
        names = set(re.findall(r"#\{([^}]+)\}", pattern["url"])) - {"trace.traceID"}
        assert {pattern["key"], *names} <= known, pattern
    assert "torch.incident.category" in get(f"http://{jaeger.query}/search"), "the page is not configured"


def missing_parents(traces: list[dict[str, Any]]) -> list[str]:
    """Return spans with a missing parent in their trace, or with a warning of Jaeger."""
    found = []
    for trace in traces:
        known = {span["spanID"] for span in trace["spans"]}
        for span in trace["spans"]:
            own = [ref for ref in span["references"] if ref["traceID"] == trace["traceID"]]
            if any(ref["spanID"] not in known for ref in own) or span["warnings"]:
                found.append(f"{span['operationName']}: {span['references']} {span['warnings']}")
    return found


def test_while_a_job_hangs_its_trace_names_who_waits_and_who_is_not_there(tmp_path: Path, jaeger: Jaeger) -> None:
    go_on = tmp_path / "go_on"
    absent = "rank 2: not here, load_shard hung.py:"
    waits = [f"waits: all_reduce default_pg [rank {rank}]" for rank in (0, 1, 3)]

    def is_whole(spans: list[dict[str, Any]]) -> bool:
        """Return True if each rank has its span. A count would not show it: each change of the incident adds a span."""
        names = {span["operationName"] for span in spans}
        return names.issuperset(waits) and any(name.startswith(absent) for name in names)

    port = int(jaeger.query.rpartition(":")[2])
    assert find_page([f"http://{jaeger.otlp}"], port=port) == f"http://{jaeger.query}"
    with torchrun.collector(tmp_path / "collector", "--forward", f"http://{jaeger.otlp}") as running:
        env = torchrun.endpoint(running, torchrun.UNHURRIED)
        job = torchrun.start(tmp_path, "hung.py", str(go_on), nproc=4, env=env)
        try:
            (incident,) = until(running.causes)
            trace_id = str(incident["trace_id"])
            spans = until(lambda: found if is_whole(found := jaeger.spans(trace_id)) else None)
            assert job.poll() is None, "it is to hang now"
            of = {span["operationName"]: span for span in spans}
            (root,) = [span for span in spans if "torch.incident.id" in tags(span)]
            assert root["operationName"] == "INCIDENT missing_rank: rank 2"
            assert not root["references"]
            assert tags(root)["error.type"] == "missing_rank"
            assert str(tags(root)["otel.status_description"]).startswith("rank 2")
            (culprit,) = [span for name, span in of.items() if name.startswith(absent)]
            waiting = [of[name] for name in waits]
            # If the collector hears of a rank later, its span is below the change's span, which has the root's name.
            above = {span["spanID"] for span in spans if span["operationName"] == root["operationName"]}
            for span in (culprit, *waiting):
                (reference,) = span["references"]
                assert reference["spanID"] in above
                assert tags(span)["host.name"] == socket.gethostname()
            assert [tags(span)["torch.rank"] for span in waiting] == [0, 1, 3]
            assert all(tags(span)["torch.span.provisional"] is True for span in waiting)
            assert tags(culprit)["error"] is True
            (event,) = culprit["logs"]
            assert "in load_shard" in {field["key"]: field["value"] for field in event["fields"]}["code.stacktrace"]
            assert missing_parents(jaeger.traces("e2e")) == []
            check_links(jaeger, root, get(f"http://{jaeger.query}/api/traces/{trace_id}")["data"][0]["processes"])
            assert "otelcol_receiver_accepted_spans" in get(f"http://{jaeger.metrics}/metrics")
        finally:
            go_on.touch()
            output, _ = job.communicate(timeout=PATIENCE)
        assert job.returncode == 0, output
        ended = "RESOLVED missing_rank: rank 2"
        calls = {f"all_reduce default_pg [rank {rank}]" for rank in range(4)}
        assert wait_for(lambda: {*calls, ended} <= {span["operationName"] for span in jaeger.spans(trace_id)})
    spans = jaeger.spans(trace_id)
    assert max(Counter(span["spanID"] for span in spans).values()) == 1
    (end,) = [span for span in spans if span["operationName"] == ended]
    assert end["duration"] > root["duration"]
    assert missing_parents(jaeger.traces("e2e")) == []


@pytest.mark.long
def test_files_of_a_job_that_ended_add_to_its_trace_and_repeat_nothing(tmp_path: Path, jaeger: Jaeger) -> None:
    with torchrun.collector(tmp_path / "collector", "--forward", f"http://{jaeger.otlp}") as running:
        job = torchrun.run(tmp_path / "job", "faults.py", "missing", env=torchrun.endpoint(running))
        (incident,) = until(running.causes)
        trace_id = str(incident["trace_id"])
        # The waiting ranks' spans, which end with their ranks.
        calls = {f"all_reduce default_pg [rank {rank}]" for rank in (0, 2)}
        assert wait_for(lambda: calls <= {span["operationName"] for span in jaeger.spans(trace_id)})
    spans = jaeger.spans(trace_id)
    (incident_span,) = [span for span in spans if "torch.incident.id" in tags(span)]
    root = tags(incident_span)
    assert root["error"] is True
    assert root["error.type"] == "missing_rank"
    assert f"rank 1 ({socket.gethostname()}) " in str(root["otel.status_description"])
    assert missing_parents(jaeger.traces("e2e")) == []
    done = otel_fr("analyze", job.dumps, "--otlp", f"http://{jaeger.otlp}")
    assert "sent 1 trace to" in done.stderr, done.stderr
    from_files = "INCIDENT missing_rank: rank 1 (from files)"
    assert wait_for(lambda: from_files in {span["operationName"] for span in jaeger.spans(trace_id)})
    spans = jaeger.spans(trace_id)
    assert max(Counter(span["spanID"] for span in spans).values()) == 1
    assert jaeger.services() == ["e2e"]
    assert missing_parents(jaeger.traces("e2e")) == []
