"""The real programs that read deploy/, started on free ports with its files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.collector_process import running
from tests.support.commands import otel_fr
from tests.support.paths import DEPLOY
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE

ALERTMANAGER = shutil.which("alertmanager") or shutil.which("prometheus-alertmanager")
JAEGER = os.environ.get("JAEGER_BIN") or shutil.which("jaeger")
OTELCOL = os.environ.get("OTELCOL_BIN") or shutil.which("otelcol")

needs_prometheus = pytest.mark.skipif(not shutil.which("prometheus"), reason="prometheus is not here")
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not here")
needs_amtool = pytest.mark.skipif(not shutil.which("amtool"), reason="amtool is not here")
needs_alertmanager = pytest.mark.skipif(not ALERTMANAGER, reason="alertmanager is not here")
needs_jaeger = pytest.mark.skipif(not JAEGER, reason="no Jaeger here (neither JAEGER_BIN nor jaeger on PATH)")
needs_otelcol = pytest.mark.skipif(
    not OTELCOL, reason="no OpenTelemetry Collector here (neither OTELCOL_BIN nor otelcol on PATH)"
)


def load(path: str | Path) -> Any:
    """Return one YAML or JSON document of deploy/."""
    return yaml.safe_load((DEPLOY / path).read_text())


def documents(path: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


def get(url: str) -> Any:
    """Return the JSON (or text) at an address; None while there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextlib.contextmanager
def started(log: Path, *command: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process with its output in ``log``. SIGTERM ends it after the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **(env or {})})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def metric_names(page: str) -> set[str]:
    """Return every sample name that a metrics page can have, including counters without a sample so far."""
    names: set[str] = set()
    for family in text_string_to_metric_families(page):
        names |= {sample.name for sample in family.samples if not sample.name.endswith("_created")}
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
        if family.type in ("histogram", "summary"):
            names |= {f"{family.name}{end}" for end in ("_bucket", "_count", "_sum")}
    return names


def our_metrics(expression: str) -> set[str]:
    """Return otel-fr's metrics in a PromQL expression, without recording rules (``level:metric:operation``)."""
    return set(re.findall(r"(?<![\w:])otel_fr_\w+(?![\w:])", expression))


def recorded(expression: str) -> set[str]:
    """Return the recording rules in a PromQL expression."""
    return set(re.findall(r"\w+:otel_fr_\w+:\w+", expression))


def known_metrics(folder: Path) -> set[str]:
    """Return the metric names of a collector in which every feature with metrics of its own is on."""
    absent = f"http://127.0.0.1:{free_port()}"
    options = ["--forward", absent, "--alertmanager", absent, "--webhook", absent, "--data", str(folder / "data")]
    with running(folder, *options) as collector:
        return metric_names(collector.get("/metrics"))


def collector_help() -> str:
    return otel_fr("collector", "--help").stdout


def check_metrics(expressions: str, folder: Path) -> None:
    """Fail if an expression names a metric that a collector does not export."""
    missing = our_metrics(expressions) - known_metrics(folder)
    assert not missing
