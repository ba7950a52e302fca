"""The chain to a real Jaeger: a hung job's collective is one trace there, with the missing rank named at its root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import torchrun
from tests.support.ports import free_port

JAEGER = os.environ.get("JAEGER_BIN") or shutil.which("jaeger")

pytestmark = [
    *torchrun.needed,
    pytest.mark.skipif(not JAEGER, reason="no Jaeger here (neither JAEGER_BIN nor jaeger on PATH)"),
]


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(OTLP address, query address) of a Jaeger."""
    otlp, query = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    env = {**os.environ, "JAEGER_OTLP_GRPC": otlp, "JAEGER_QUERY_HTTP": query}
    env["JAEGER_QUERY_GRPC"] = f"127.0.0.1:{free_port()}"
    with open(tmp_path / "jaeger.log", "wb") as log:
        command = [str(JAEGER), "--config", str(Path(__file__).with_name("jaeger.yaml"))]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        torchrun.wait_for_port(otlp, process)
        torchrun.wait_for_port(query, process)
        yield otlp, query
    finally:
        process.terminate()
        process.wait(15)


def _trace(query: str, trace_id: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://{query}/api/traces/{trace_id}", timeout=5) as answer:
            spans: list[dict[str, Any]] = json.load(answer)["data"][0]["spans"]
            return spans
    except urllib.error.HTTPError:
        return []


def _tags(span: dict[str, Any]) -> dict[str, object]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def test_the_incident_is_the_root_of_the_ranks_spans(tmp_path: Path, jaeger: tuple[str, str]) -> None:
    otlp, query = jaeger
    with torchrun.collector(tmp_path / "collector", "--forward", f"http://{otlp}") as running:
        torchrun.run(tmp_path / "job", "fault.py", "missing", env=torchrun.endpoint(running))
        (incident,) = running.causes()
        trace_id = str(incident["trace_id"])
        # The root, and the two waiting ranks' spans, which end when their ranks do.
        assert torchrun.wait_until(lambda: len(_trace(query, trace_id)) >= 3)
    spans = _trace(query, trace_id)
    roots = [span for span in spans if not span["references"]]
    assert [span["operationName"] for span in roots] == ["all_reduce default_pg"]
    root = _tags(roots[0])
    assert root["error"] is True
    assert root["error.type"] == "missing_rank"
    assert "rank 1 did not join" in str(root["otel.status_description"])
    children = [span for span in spans if span["references"]]
    assert {ref["spanID"] for span in children for ref in span["references"]} == {roots[0]["spanID"]}
    assert {_tags(span)["torch.collective.operation"] for span in children} == {"all_reduce"}
