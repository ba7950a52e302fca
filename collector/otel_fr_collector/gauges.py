"""The metrics of the jobs, for Prometheus, computed from the live state when they are scraped."""

from __future__ import annotations

import heapq
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from otel_fr.incident import CollectorIncidentData, ProcessGroupData
from otel_fr.match.lateness import Lateness
from otel_fr.presentation import group_name
from otel_fr.printable import one_line
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.tallies import RankTally
from otel_fr_collector.metric_table import FAMILIES, empty

MAX_SERIES = 1_000
"""Series of one family with labels of jobs and groups; the highest values come first."""
MAX_STRAGGLERS, MAX_STRAGGLERS_OF_GROUP = 100, 3
"""Ranks with metrics of their own: those that are waited for most, of all groups and of one."""
MAX_RANKS_OF_GROUP = 64
"""Ranks of one group with counters of waits: those that were waited for most."""


def group_label(group: ProcessGroupData | None) -> str:
    """A process group (an incident's ``process_group``, or None) as a label's value: its description, else its name."""
    return "" if group is None else one_line(group_name(group["name"], group["description"]))


class JobGauges(Collector):
    """Runs, open incidents, lag, skew and stragglers, read from the live state at each scrape."""

    def __init__(
        self,
        runs: Runs,
        open_incidents: Callable[[], Iterable[CollectorIncidentData]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._open = open_incidents

    def collect(self) -> Iterator[Metric]:
        runs = list(self._runs.by_id.values())
        evicted, usage = self._runs.evicted(), self._runs.usage
        yield _gauge("otel_fr_collector_runs", len(runs))
        yield _gauge("otel_fr_collector_ranks", sum(len(run.ranks) for run in runs))
        yield _gauge("otel_fr_collector_pending_calls", sum(run.call_count for run in runs))
        now = self._clock()
        yield _gauge("otel_fr_collector_behind_seconds", max((run.lateness(now) for run in runs), default=0.0))
        yield _counter("otel_fr_collector_evicted", evicted)
        yield _counter("otel_fr_collector_capacity_exceeded", usage.refused)
        yield self._incidents()
        yield self._lag()
        yield self._skew()
        yield from self._stragglers()
        yield from self._slowest()
        yield self._steps()
        yield from self._waits()

    def _incidents(self) -> GaugeMetricFamily:
        family = empty(GaugeMetricFamily, "otel_fr_incidents_open")
        tally: Tally[tuple[str, str, str]] = Tally()
        for incident in self._open():
            if not incident["caused_by"]:
                group = group_label(incident["process_group"])
                tally[one_line(incident["job"]), group, incident["category"]] += 1
        for values, count in tally.most_common(MAX_SERIES):
            family.add_metric(values, count)
        return family

    def _lag(self) -> GaugeMetricFamily:
        family = empty(GaugeMetricFamily, "otel_fr_progress_lag")
        lags: dict[tuple[str, str], int] = {}
        for run in self._runs.by_id.values():
            enqueued: dict[str, list[int]] = {}
            for rank in run.ranks.values():
                for group, own in rank.progress.items():
                    enqueued.setdefault(group, []).append(own[0])
            for group, counts in enqueued.items():
                state = run.groups.get(group)
                if state is not None:
                    label = _labels(run, state)
                    lags[label] = max(lags.get(label, 0), max(counts) - min(counts))
        for values in sorted(lags, key=lambda key: -lags[key])[:MAX_SERIES]:
            family.add_metric(values, lags[values])
        return family

    def _skew(self) -> SummaryMetricFamily:
        family = empty(SummaryMetricFamily, "otel_fr_collective_skew_seconds")
        skews: dict[tuple[str, str], tuple[int, float]] = {}
        for run in self._runs.by_id.values():
            for state in run.groups.values():
                if state.skew_count:
                    label = _labels(run, state)
                    count, total = skews.get(label, (0, 0.0))
                    skews[label] = (count + state.skew_count, total + state.skew_sum)
        for values in sorted(skews, key=lambda key: -skews[key][1])[:MAX_SERIES]:
            family.add_metric(values, *skews[values])
        return family

    def _stragglers(self) -> Iterator[GaugeMetricFamily]:
        behind = empty(GaugeMetricFamily, "otel_fr_straggler_behind_seconds")
        ratio = empty(GaugeMetricFamily, "otel_fr_straggler_late_ratio")
        found: dict[tuple[str, str, str], Lateness] = {}
        for run in self._runs.by_id.values():
            for state in run.groups.values():
                for one in state.waits.lateness()[:MAX_STRAGGLERS_OF_GROUP]:
                    label = (*_labels(run, state), str(one.rank))
                    if label not in found or found[label].waited < one.waited:
                        found[label] = one
        for values in sorted(found, key=lambda key: -found[key].waited)[:MAX_STRAGGLERS]:
            behind.add_metric(values, found[values].seconds)
            ratio.add_metric(values, found[values].share)
        yield behind
        yield ratio

    def _slowest(self) -> Iterator[GaugeMetricFamily]:
        """The ranks that are named, with what they cost."""
        ratio = empty(GaugeMetricFamily, "otel_fr_straggler_wait_ratio")
        lost = empty(GaugeMetricFamily, "otel_fr_straggler_lost_per_step_seconds")
        now = self._clock()
        found: dict[tuple[str, str, str], tuple[float, float | None]] = {}
        for run in self._runs.by_id.values():
            steps = run.steps.per_second(now)
            for state, slowest in run.slowest(now):
                each = slowest.waited / steps if steps else None
                labels = _labels(run, state)
                found[labels[0], labels[1], str(slowest.rank)] = slowest.waited, each
        for values in heapq.nlargest(MAX_STRAGGLERS, found, key=lambda key: found[key][0]):
            ratio.add_metric(values, found[values][0])
            if (each := found[values][1]) is not None:
                lost.add_metric(values, each)
        yield ratio
        yield lost

    def _steps(self) -> GaugeMetricFamily:
        """Of several runs of a job, the newest with steps counts."""
        family = empty(GaugeMetricFamily, "otel_fr_step_average_seconds")
        now = self._clock()
        found: dict[str, float] = {}
        for run in self._runs.by_id.values():
            if steps := run.steps.per_second(now):
                found[one_line(run.id.job)] = 1 / steps
        for job, seconds in list(found.items())[-MAX_SERIES:]:
            family.add_metric((job,), seconds)
        return family

    def _waits(self) -> Iterator[CounterMetricFamily]:
        """Totals of the ranks, with what runs of the same job had counted that are no longer known."""
        found: dict[tuple[str, str, str], RankTally] = {}
        for run in self._runs.by_id.values():
            for state in run.groups.values():
                labels = _labels(run, state)
                for rank, tally in state.waits.tallies.largest(MAX_RANKS_OF_GROUP):
                    found.setdefault((*labels, str(rank)), RankTally()).add(tally)
        for job, group, rank, tally in self._runs.past.items():
            found.setdefault((one_line(job), one_line(group), str(rank)), RankTally()).add(tally)
        most = heapq.nlargest(MAX_SERIES, found.items(), key=lambda item: item[1].waited_for)
        for name, field in (
            ("otel_fr_rank_waited_for_seconds", "waited_for"),
            ("otel_fr_rank_waited_seconds", "waited"),
            ("otel_fr_rank_came_last", "came_last"),
        ):
            family = empty(CounterMetricFamily, name)
            for values, tally in most:
                family.add_metric(values, getattr(tally, field))
            yield family


def _labels(run: Run, state: GroupState) -> tuple[str, str]:
    """Job and group as an alert's labels have them."""
    return one_line(run.id.job), one_line(group_name(state.group.name, state.group.description))


def _counter(name: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    """A counter with one label, 0 for each of its values that has not been counted."""
    family = empty(CounterMetricFamily, name)
    for kind in FAMILIES[name].labels[0].values:
        family.add_metric((kind,), counts.get(kind, 0))
    return family


def _gauge(name: str, value: float) -> GaugeMetricFamily:
    table = FAMILIES[name]
    return GaugeMetricFamily(table.name, table.help, value=value)
