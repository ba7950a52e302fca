"""The collector's metrics of itself, for Prometheus. Every label has a bounded number of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class Metrics:
    """The counters, one attribute each, and the gauges of the process; those of the jobs are in `gauges`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"otel_fr_collector_{name}", text, labels, registry=self.registry)

        self.requests = counter("requests", "OTLP requests by signal and outcome", "signal", "outcome")
        self.received = counter(
            "received_items", "Spans, log records and metrics by origin: ours, foreign or invalid", "signal", "kind"
        )
        self.reports = counter("reports", "Rank reports by outcome: accepted, late or invalid", "outcome")
        self.forwarded = counter("forwarded_requests", "Requests an OTLP backend has taken", "signal", "backend")
        self.forward_dropped = counter(
            "forward_dropped_requests", "Requests not forwarded, and why", "backend", "reason"
        )
        self.forward_repeated = counter("forward_repeated_requests", "Requests sent again, forwarded only once")
        self.turned_away = counter("turned_away", "Requests not let in, and why", "reason")
        self.alerts = counter("alert_posts", "Posts to Alertmanager by outcome", "outcome")
        self.deliveries = counter("deliveries", "Posts to webhooks and Grafana by outcome", "outlet", "outcome")
        self.incidents = counter("incidents", "Incidents opened, by category; consequences not counted", "category")
        self.diagnoses = counter("diagnoses", "Times a run was judged")
        self.diagnosis_seconds = counter("diagnosis_seconds", "Seconds spent on judging")
        self.errors = counter("internal_errors", "Faults of the collector itself, by part", "part")
        store_text = "1: every incident is on disk; 0: some are in memory only. Absent without --data"
        self.store_up = Gauge("otel_fr_collector_store_up", store_text, registry=None)
        """Served once `watch_store` is called."""

    def watch_store(self) -> None:
        """Serve the gauge that tells of the incidents on disk."""
        self.registry.register(self.store_up)

    def watch_certificate(self, expires: Callable[[], float]) -> None:
        """Serve the Unix time at which the ports' certificate expires as well."""
        name = "otel_fr_collector_tls_certificate_expiry_timestamp_seconds"
        Gauge(name, "When the certificate of the ports expires", registry=self.registry).set_function(expires)

    def watch_intake(self, requests: Callable[[], float], size: Callable[[], float]) -> None:
        """Serve how much the doors have in work as well."""
        for name, text, now in (
            ("requests", "OTLP requests in work", requests),
            ("bytes", "Bytes of OTLP requests in work; --max-queue-size is their limit", size),
        ):
            Gauge(f"otel_fr_collector_in_work_{name}", text, registry=self.registry).set_function(now)

    def watch_queues(self, usage: Mapping[str, Sequence[int]]) -> None:
        """Serve the requests and bytes that wait for each backend as well."""
        self.registry.register(_Queues(usage))


class _Queues(Collector):
    def __init__(self, usage: Mapping[str, Sequence[int]]) -> None:
        self._usage = usage

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for index, (what, text) in enumerate((("requests", "Requests"), ("bytes", "Bytes of requests"))):
            name = f"otel_fr_collector_forward_queue_{what}"
            family = GaugeMetricFamily(name, f"{text} that wait for a backend", labels=("backend",))
            for backend, values in self._usage.items():
                family.add_metric((backend,), values[index])
            yield family
