"""The metrics of the jobs' collectives, for Prometheus, from the numbers that the ranks' monitors send."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from otel_fr.printable import one_line
from otel_fr_collector.jobs.numbers import Durations, Key, Series, bus_factor
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.metric_table import empty, largest

MAX_SERIES = 1_000
"""Series of one family. Series with the most time come first."""
MAX_HISTOGRAMS = 250
"""Histograms of one family, each of up to 18 lines."""

Values = tuple[str, ...]
"""Values of the labels."""

_HISTOGRAMS: Final[tuple[tuple[str, Callable[[Series], Durations]], ...]] = (
    ("otel_fr_collective_duration_seconds", lambda series: series.took),
    ("otel_fr_collective_device_delay_seconds", lambda series: series.delays),
    ("otel_fr_collective_device_duration_seconds", lambda series: series.runs),
)


class CollectiveMetrics(Collector):
    """Totals of each job's runs, including dropped ones, read at each scrape."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        series, bounds = self._series()
        most = heapq.nlargest(MAX_SERIES, series, key=lambda values: series[values].took.seconds)
        for name, field in (("otel_fr_collective_calls", "calls"), ("otel_fr_collective_bytes", "bytes")):
            counter = empty(CounterMetricFamily, name)
            for values in most:
                counter.add_metric(values, getattr(series[values], field))
            yield counter
        for name, of in _HISTOGRAMS:
            durations = {values: of(series[values]) for values in most}
            shown = [values for values in most if durations[values].counts][:MAX_HISTOGRAMS]
            yield _histograms(name, durations, shown, bounds)
        yield self._bandwidths()
        yield self._steps()

    def _series(self) -> tuple[dict[Values, Series], dict[str, tuple[float, ...]]]:
        """Series by labels, and the bounds of the histograms by job. Leaves out runs with other bounds than the job's
        newest run: they come from another version of otel-fr."""
        found: dict[Values, Series] = {}
        bounds: dict[str, tuple[float, ...]] = {}
        for name, known, _, of in self._known():
            job = one_line(name)
            if of and bounds.setdefault(job, of) != of:
                continue
            for key, series in known.items():
                found.setdefault(_values(job, key), Series()).add(series)
        return found, bounds

    def _known(self) -> Iterator[tuple[str, dict[Key, Series], Durations, tuple[float, ...]]]:
        """Job, series, steps and bounds of each run, newest first, and then of dropped runs."""
        for run in reversed(self._runs.by_id.values()):
            if run.numbers is not None:
                yield run.id.job, run.numbers.series, run.numbers.steps, run.numbers.bounds
        yield from self._runs.past_numbers.items()

    def _bandwidths(self) -> GaugeMetricFamily:
        """Bus bandwidth by labels. Of several runs or groups with the same labels, the fastest counts."""
        found: dict[Values, float] = {}
        for run in self._runs.by_id.values():
            if run.numbers is None:
                continue
            window, job = run.numbers.window(), one_line(run.id.job)
            for key, series in run.numbers.series.items():
                speed = series.speed(window)
                if speed is None or speed.seconds <= 0:
                    continue
                own = speed.bytes / speed.seconds * bus_factor(key.operation, key.group_size)
                values = _values(job, key)
                found[values] = max(found.get(values, own), own)
        return largest(GaugeMetricFamily, "otel_fr_collective_bus_bandwidth_bytes_per_second", found, MAX_SERIES)

    def _steps(self) -> HistogramMetricFamily:
        found: dict[Values, Durations] = {}
        bounds: dict[str, tuple[float, ...]] = {}
        for name, _, steps, of in self._known():
            job = one_line(name)
            if steps.counts and bounds.setdefault(job, of) == of:
                found.setdefault((job,), Durations()).add(steps)
        most = heapq.nlargest(MAX_HISTOGRAMS, found, key=lambda values: found[values].seconds)
        return _histograms("otel_fr_step_duration_seconds", found, most, bounds)


def _values(job: str, key: Key) -> Values:
    texts = (key.group, key.operation, key.backend, key.dtype, key.size)
    return (job, *(one_line(text) for text in texts))


def _histograms(
    name: str, series: dict[Values, Durations], shown: Sequence[Values], bounds: dict[str, tuple[float, ...]]
) -> HistogramMetricFamily:
    family = empty(HistogramMetricFamily, name)
    for values in shown:
        one = series[values]
        edges = (*bounds.get(values[0], ()), float("inf"))
        if len(one.counts) == len(edges):
            family.add_metric(values, _buckets(one, edges), one.seconds)
    return family


def _buckets(series: Durations, edges: Sequence[float]) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Cumulative buckets, as in Prometheus. The exemplar is in the bucket that its value falls into."""
    found: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    slow, below = series.exemplar, float("-inf")
    for edge, count in zip(edges, accumulate(series.counts), strict=True):
        le = "+Inf" if edge == float("inf") else repr(edge)
        if slow is not None and below < slow.value <= edge:
            labels = {"trace_id": slow.trace_id, "span_id": slow.span_id}
            found.append((le, count, Exemplar(labels, slow.value, slow.at)))
        else:
            found.append((le, count))
        below = edge
    return found
