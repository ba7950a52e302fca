"""The collector's metrics about itself, for Prometheus. Their definitions are in `metric_table`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from otel_fr_collector.metric_table import FAMILIES, empty

# Prometheus's text format has no creation times; prometheus_client writes a gauge named *_created for each counter
# instead, which doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The counters, one attribute each, and the gauges of the process. The gauges of the jobs are in `gauges`.

    Series whose label values are known beforehand exist from the start, at 0, so that Prometheus's ``increase`` sees
    their first event. Metrics that depend on an option are served once their ``watch_...`` method is called.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.requests_rejected = self._counter("otel_fr_collector_requests_rejected")
        self.items_received = self._counter("otel_fr_collector_items_received")
        self.rank_reports = self._counter("otel_fr_collector_rank_reports")
        self.disagreements = self._counter("otel_fr_collector_disagreements")
        self.errors = self._counter("otel_fr_collector_internal_errors")
        judging = FAMILIES["otel_fr_collector_judgement_duration_seconds"]
        self.judgement_duration = Summary(judging.name, judging.help, registry=self.registry)
        store = FAMILIES["otel_fr_collector_store_up"]
        self.store_up = Gauge(store.name, store.help, registry=None)
        self.forward_sent = self._counter("otel_fr_collector_forward_requests_sent")
        self.forward_dropped = self._counter("otel_fr_collector_forward_requests_dropped")
        self.output_dropped = self._counter("otel_fr_collector_output_lines_dropped")
        self.deliveries = self._counter("otel_fr_collector_deliveries")
        self._has_deliveries = False

    def watch_store(self) -> None:
        """Serve whether all incidents are on disk."""
        self.registry.register(self.store_up)

    def watch_certificate(self, expires: Callable[[], float]) -> None:
        """Serve the Unix time at which the ports' certificate expires."""
        self._gauge("otel_fr_collector_tls_certificate_expiry_timestamp_seconds", expires)

    def watch_intake(self, requests: Callable[[], float], size: Callable[[], float]) -> None:
        """Serve the number and the bytes of the requests in flight."""
        self._gauge("otel_fr_collector_requests_in_flight", requests)
        self._gauge("otel_fr_collector_requests_in_flight_bytes", size)

    def watch_forwarding(self, sizes: Mapping[str, int], max_bytes: int, is_up: Callable[[], bool]) -> None:
        """Serve the results of forwarding, and the queues of the backends.

        Args:
            sizes: bytes of waiting requests, by backend. Read at each scrape.
            max_bytes: limit of one queue.
            is_up: returns whether the file under the queues, if there is one, can be used.
        """
        self._gauge("otel_fr_collector_forward_queue_up", is_up)
        for name, counter in (
            ("otel_fr_collector_forward_requests_sent", self.forward_sent),
            ("otel_fr_collector_forward_requests_dropped", self.forward_dropped),
        ):
            _add_series(counter, name, backend=sizes)
            self.registry.register(counter)
        self.registry.register(_ForwardQueues(sizes, max_bytes))

    def watch_deliveries(self, outlet: str) -> None:
        """Serve the deliveries of one outlet. Outlets with the same name are added up."""
        if not self._has_deliveries:
            self.registry.register(self.deliveries)
            self._has_deliveries = True
        _add_series(self.deliveries, "otel_fr_collector_deliveries", outlet=[outlet])

    def _counter(self, name: str) -> Counter:
        family = FAMILIES[name]
        registry = None if family.needs else self.registry
        counter = Counter(family.name, family.help, family.label_names, registry=registry)
        _add_series(counter, name)
        return counter

    def _gauge(self, name: str, read: Callable[[], float]) -> None:
        family = FAMILIES[name]
        Gauge(family.name, family.help, registry=self.registry).set_function(read)


class _ForwardQueues(Collector):
    def __init__(self, sizes: Mapping[str, int], max_bytes: int) -> None:
        self._sizes = sizes
        self._max_bytes = max_bytes

    def collect(self) -> Iterator[GaugeMetricFamily]:
        waiting = empty(GaugeMetricFamily, "otel_fr_collector_forward_queue_bytes")
        capacity = empty(GaugeMetricFamily, "otel_fr_collector_forward_queue_capacity_bytes")
        for backend, size in self._sizes.items():
            waiting.add_metric((backend,), size)
            capacity.add_metric((backend,), self._max_bytes)
        yield waiting
        yield capacity


def _add_series(counter: Counter, name: str, **known: Iterable[str]) -> None:
    """Create the series of all known label values, from the table and from ``known``."""
    labels = FAMILIES[name].labels
    if labels:
        for values in itertools.product(*(known.get(label.name, label.values) for label in labels)):
            counter.labels(*values)
