"""Metrics that several parts of the collector share."""

from __future__ import annotations

from otel_fr_collector.metric_table import FAMILIES
from otel_fr_collector.receive.rejections import Reason


def test_every_reason_for_a_rejection_is_in_the_table() -> None:
    labels = {label.name: label for label in FAMILIES["otel_fr_collector_requests_rejected"].labels}
    assert {reason.label for reason in Reason} == set(labels["reason"].values)
