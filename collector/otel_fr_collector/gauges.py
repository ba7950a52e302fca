"""The metrics of the jobs, for Prometheus, computed from the live state when they are scraped."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from otel_fr.incident import CollectorIncidentData, ProcessGroupData
from otel_fr.presentation import group_name
from otel_fr.printable import one_line
from otel_fr_collector.control import Control
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.metric_table import FAMILIES, empty, largest

MAX_SERIES = 1_000
"""Series of one family with labels of jobs and groups; the highest values come first."""
MAX_STRAGGLERS = 100
"""Stragglers that are named: the ranks that are waited for most."""
MAX_RANKS_OF_GROUP = 64
"""Ranks of one group with counters of waits: the ranks that were waited for most."""


def group_label(group: ProcessGroupData | None) -> str:
    """A process group (an incident's ``process_group``, or None) as a label's value: its description, else its name."""
    return "" if group is None else one_line(group_name(group["name"], group["description"]))


class JobGauges(Collector):
    """Ranks, open incidents, lag and stragglers, read from the live state at each scrape."""

    def __init__(
        self,
        runs: Runs,
        open_incidents: Callable[[], Iterable[CollectorIncidentData]],
        alerting: Callable[[float], Iterable[CollectorIncidentData]],
        control: Control,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._open = open_incidents
        self._alerting = alerting
        self._control = control

    def collect(self) -> Iterator[Metric]:
        runs = list(self._runs.by_id.values())
        evicted, usage = self._runs.evicted(), self._runs.usage
        yield _gauge("otel_fr_collector_ranks", sum(len(run.ranks) for run in runs))
        yield _gauge("otel_fr_collector_control_streams", self._control.count)
        yield _gauge("otel_fr_collector_pending_calls", sum(run.call_count for run in runs))
        now = self._clock()
        yield _gauge("otel_fr_collector_behind_seconds", max((run.lateness(now) for run in runs), default=0.0))
        yield _counter("otel_fr_collector_evicted", evicted)
        yield _counter("otel_fr_collector_capacity_exceeded", usage.refused)
        yield _incidents("otel_fr_incidents_open", self._open())
        yield _incidents("otel_fr_incidents_alerting", self._alerting(now))
        yield self._lag()
        yield self._slowest()
        yield self._waits()

    def _lag(self) -> GaugeMetricFamily:
        lags: dict[tuple[str, ...], int] = {}
        for run in self._runs.by_id.values():
            for group, (low, high) in run.levels.by_group().spans().items():
                state = run.groups.get(group)
                if state is not None:
                    label = _labels(run, state)
                    lags[label] = max(lags.get(label, 0), high - low)
        return largest(GaugeMetricFamily, "otel_fr_progress_lag", lags, MAX_SERIES)

    def _slowest(self) -> GaugeMetricFamily:
        """Ranks that their groups wait for again and again."""
        now = self._clock()
        found: dict[tuple[str, ...], float] = {}
        for run in self._runs.by_id.values():
            for state, slowest in run.slowest(now):
                key = (*_labels(run, state), str(slowest.rank))
                found[key] = max(found.get(key, 0.0), slowest.waited)
        return largest(GaugeMetricFamily, "otel_fr_straggler_wait_ratio", found, MAX_STRAGGLERS)

    def _waits(self) -> CounterMetricFamily:
        """Totals by rank over all runs of the job, including dropped ones."""
        found: defaultdict[tuple[str, str, int], float] = defaultdict(float)
        shown: set[tuple[str, str, int]] = set()
        for run in self._runs.by_id.values():
            for state in run.groups.values():
                (job, group), tallies = _labels(run, state), state.waits.tallies
                for rank, tally in tallies.items():
                    found[job, group, rank] += tally.waited_for
                shown.update([(job, group, rank) for rank, _ in tallies.largest(MAX_RANKS_OF_GROUP)])
        for job, group, rank, tally in self._runs.past.items():
            key = one_line(job), one_line(group), rank
            found[key] += tally.waited_for
            shown.add(key)
        totals: dict[tuple[str, ...], float] = {
            (job, group, str(rank)): found[job, group, rank] for job, group, rank in shown
        }
        return largest(CounterMetricFamily, "otel_fr_rank_waited_for_seconds", totals, MAX_SERIES)


def _incidents(name: str, incidents: Iterable[CollectorIncidentData]) -> GaugeMetricFamily:
    tally: Tally[tuple[str, ...]] = Tally()
    for incident in incidents:
        if not incident["caused_by"]:
            group = group_label(incident["process_group"])
            tally[one_line(incident["job"]), group, incident["category"]] += 1
    return largest(GaugeMetricFamily, name, tally, MAX_SERIES)


def _labels(run: Run, state: GroupState) -> tuple[str, str]:
    """Job and group, in the form of an alert's labels."""
    return one_line(run.id.job), one_line(group_name(state.group.name, state.group.description))


def _counter(name: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    """A counter with one label. Values of the label that were not counted are 0."""
    family = empty(CounterMetricFamily, name)
    for kind in FAMILIES[name].labels[0].values:
        family.add_metric((kind,), counts.get(kind, 0))
    return family


def _gauge(name: str, value: float) -> GaugeMetricFamily:
    table = FAMILIES[name]
    return GaugeMetricFamily(table.name, table.help, value=value)
