"""The metrics page and its reference: what /metrics serves is what the table of definitions says, and nothing else."""

from __future__ import annotations

import pytest
from otel_fr_collector.metric_table import FAMILIES, reference
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.collector_process import running
from tests.support.otlp_messages import spans
from tests.support.paths import DOCS
from tests.support.played_job import Job
from tests.support.ports import free_port
from tests.support.waiting import wait_for

CERTIFICATE = "otel_fr_collector_tls_certificate_expiry_timestamp_seconds"
"""Served with TLS only: tests/integration/collector/test_security.py."""


def scrape(page: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page)}


def test_the_reference_has_every_metric() -> None:
    text = (DOCS / "metrics.md").read_text()
    assert reference() in text, "put the output of metric_table.reference() into docs/metrics.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Metric]:
    """A scrape of a collector with every option that has metrics of its own, except TLS, while an incident is open."""
    folder = tmp_path_factory.mktemp("metrics")
    absent = f"http://127.0.0.1:{free_port()}"
    options = ["--forward", absent, "--alertmanager", absent, "--webhook", absent, "--data", str(folder / "data")]
    with running(folder, *options) as collector, Job(collector, 2) as job:
        job.step()
        job.skip(1)
        assert wait_for(lambda: collector.metric("otel_fr_incidents_open") >= 1)
        assert collector.post("/v1/traces", spans(1)).status == 200
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
            assert set(sample.labels) == set(family.label_names), name
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
        capacity = name.replace("_bytes", "").endswith("_capacity")
        if capacity:
            assert name.replace("_capacity", "") in FAMILIES or name.replace("_capacity", "_size") in FAMILIES, name
