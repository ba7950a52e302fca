"""Metrics that several parts of the collector share."""

from __future__ import annotations

from otel_fr_collector.metric_table import FAMILIES
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.receive.rejections import Reason


def test_queues_of_webhooks_on_one_host_are_added_up() -> None:
    metrics = Metrics()
    metrics.watch_deliveries("webhook hooks.example", lambda: 2, 10)
    metrics.watch_deliveries("webhook hooks.example", lambda: 3, 10)
    metrics.watch_deliveries("grafana graphs.example", lambda: 1, 10)

    def read(name: str, outlet: str) -> float | None:
        return metrics.registry.get_sample_value(f"otel_fr_collector_delivery_queue_{name}", {"outlet": outlet})

    assert (read("size", "webhook hooks.example"), read("capacity", "webhook hooks.example")) == (5, 20)
    assert (read("size", "grafana graphs.example"), read("capacity", "grafana graphs.example")) == (1, 10)


def test_every_reason_for_a_rejection_is_in_the_table() -> None:
    labels = {label.name: label for label in FAMILIES["otel_fr_collector_requests_rejected"].labels}
    assert {reason.label for reason in Reason} == set(labels["reason"].values)
