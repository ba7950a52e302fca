"""The metrics page and its reference: /metrics serves exactly the metrics of the table of definitions."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from otel_fr_collector.metric_table import FAMILIES, reference
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.support.collector_process import running
from tests.support.otlp_messages import spans
from tests.support.paths import DOCS
from tests.support.played_job import Job
from tests.support.ports import free_port
from tests.support.rank_metrics import SLOWEST, metrics_of
from tests.support.waiting import wait_for

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""The Accept header of Prometheus."""
CERTIFICATE = "otel_fr_collector_tls_certificate_expiry_timestamp_seconds"
"""Served only with TLS: tests/integration/collector/test_security.py."""


def scrape(page: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def test_the_reference_has_every_metric() -> None:
    text = (DOCS / "reference" / "metrics.md").read_text()
    assert reference() in text, "put the output of metric_table.reference() into docs/reference/metrics.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Metric]:
    """A scrape of a collector with an open incident, and with every option that has its own metrics, except TLS."""
    folder = tmp_path_factory.mktemp("metrics")
    absent = f"http://127.0.0.1:{free_port()}"
    options = ["--forward", absent, "--alertmanager", absent, "--webhook", absent, "--data", str(folder / "data")]
    with running(folder, *options) as collector, Job(collector, 2) as job:
        job.hang(1)
        assert wait_for(lambda: collector.metric("otel_fr_incidents_open") >= 1)
        assert collector.post("/v1/traces", spans(1)).status == 200
        for rank in range(2):
            assert collector.post("/v1/metrics", metrics_of(rank)).status == 200
        assert collector.post("/v1/traces", b"\xff").status == 400
        return scrape(collector.get("/metrics"))


def test_every_family_that_is_served_is_in_the_table_and_every_family_of_the_table_is_served(
    page: dict[str, Metric],
) -> None:
    assert page.keys() | {CERTIFICATE} == FAMILIES.keys()


def test_types_helps_and_labels_are_those_of_the_table(page: dict[str, Metric]) -> None:
    for name, served in page.items():
        family = FAMILIES[name]
        assert (served.type, served.documentation) == (family.type, family.help)
        for sample in served.samples:
            assert set(sample.labels) - {"le"} == set(family.label_names), name
            for label in family.labels:
                value = sample.labels[label.name]
                assert not label.values or value in label.values, (name, label.name, value)


def test_counters_start_at_zero_with_all_known_label_values(page: dict[str, Metric]) -> None:
    for name, family in FAMILIES.items():
        if family.type == "counter" and all(label.values for label in family.labels):
            series = 1
            for label in family.labels:
                series *= len(label.values)
            assert len(page[name].samples) == series, name


def test_names_follow_the_units() -> None:
    for name, family in FAMILIES.items():
        assert name.startswith("otel_fr_")
        assert not name.endswith("_total"), "the client library adds it"
        assert family.text.endswith(".")
        assert name.endswith("_bytes") == (family.unit == "bytes"), name
        assert name.endswith("_seconds") == ("seconds" in family.unit), name


def test_who_accepts_openmetrics_gets_the_span_of_a_slow_call(tmp_path: Path) -> None:
    with running(tmp_path) as collector:
        assert collector.post("/v1/metrics", metrics_of(1)).status == 200
        request = urllib.request.Request(f"{collector.http}/metrics", headers={"Accept": OPENMETRICS})
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            text = answer.read().decode()
        families = {one.name: one for one in openmetrics.text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
        plain = scrape(collector.get("/metrics"))
    duration = "otel_fr_collective_duration_seconds"
    (exemplar,) = [one.exemplar for one in families[duration].samples if one.exemplar is not None]
    assert {name: len(text) for name, text in exemplar.labels.items()} == {"trace_id": 32, "span_id": 16}
    assert exemplar.value == SLOWEST
    assert families.keys() == plain.keys()
    assert all(one.exemplar is None for one in plain[duration].samples)
