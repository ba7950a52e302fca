"""What the collector says of itself and of the jobs, for Prometheus. Every label has a bounded number of values."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from otel_fr_collector.jobs.runs import Runs

MAX_SERIES = 1_000
"""Series of one family that tell of single jobs and groups; those furthest behind come first."""


class Metrics:
    """The counters, one attribute each, and the gauges, read from the state at scrape time."""

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

    def watch(self, runs: Runs, open_incidents: Callable[[], Iterable[dict[str, object]]]) -> None:
        """Serve gauges from the live state as well."""
        self.registry.register(_State(runs, open_incidents))

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


def group_label(group: object) -> str:
    """A process group (an incident's ``process_group``, or None) as a label's value: its description, else its name."""
    if not isinstance(group, dict):
        return ""
    return str(group.get("description") or group.get("name") or "")


class _State(Collector):
    def __init__(self, runs: Runs, open_incidents: Callable[[], Iterable[dict[str, object]]]) -> None:
        self._runs = runs
        self._open = open_incidents

    def collect(self) -> Iterator[Metric]:
        runs = list(self._runs.by_id.values())
        evicted, usage = self._runs.evicted(), self._runs.usage
        yield _single("runs", "Runs known", len(runs))
        yield _single("ranks", "Ranks known", sum(len(run.ranks) for run in runs))
        yield _single("calls_kept", "Calls of collectives that are not yet complete", sum(run.parts for run in runs))
        yield _tally("evicted", "Runs, incomplete collectives and their calls forgotten for lack of room", evicted)
        yield _tally("refused", "What found no room, by the limit that it met", usage.refused)
        yield self._incidents()
        yield self._lag()
        yield self._skew()

    def _incidents(self) -> GaugeMetricFamily:
        labels = ("job_id", "process_group", "category")
        family = GaugeMetricFamily("otel_fr_incidents_open", "Open incidents; consequences not counted", labels=labels)
        tally: Tally[tuple[str, str, str]] = Tally()
        for incident in self._open():
            if not incident["caused_by"]:
                group = group_label(incident["process_group"])
                tally[str(incident["job"]), group, str(incident["category"])] += 1
        for values, count in tally.most_common(MAX_SERIES):
            family.add_metric(values, count)
        return family

    def _lag(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "otel_fr_progress_lag",
            "Collectives by which the last member of a process group is behind the first",
            labels=("job_id", "process_group"),
        )
        lags: dict[tuple[str, str], int] = {}
        for run in self._runs.by_id.values():
            standings: dict[str, list[int]] = {}
            for rank in run.ranks.values():
                for group, own in rank.standings.items():
                    standings.setdefault(group, []).append(own[0])
            for group, counts in standings.items():
                place = run.groups.get(group)
                if place is not None:
                    label = (run.id.job, place.group.description or place.group.name)
                    lags[label] = max(lags.get(label, 0), max(counts) - min(counts))
        for values in sorted(lags, key=lambda key: -lags[key])[:MAX_SERIES]:
            family.add_metric(values, lags[values])
        return family

    def _skew(self) -> SummaryMetricFamily:
        family = SummaryMetricFamily(
            "otel_fr_collective_skew_seconds",
            "How much longer a collective took the member that came first than the one that came last; one of 16",
            labels=("job_id", "process_group"),
        )
        skews: dict[tuple[str, str], tuple[int, float]] = {}
        for run in self._runs.by_id.values():
            for place in run.groups.values():
                if place.skew_count:
                    label = (run.id.job, place.group.description or place.group.name)
                    count, total = skews.get(label, (0, 0.0))
                    skews[label] = (count + place.skew_count, total + place.skew_sum)
        for values in sorted(skews, key=lambda key: -skews[key][1])[:MAX_SERIES]:
            family.add_metric(values, *skews[values])
        return family


def _tally(name: str, text: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"otel_fr_collector_{name}", text, labels=("kind",))
    for kind in sorted(counts):
        family.add_metric((kind,), counts[kind])
    return family


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


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"otel_fr_collector_{name}", text, value=value)
