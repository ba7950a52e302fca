"""Numbers of monitors, added up: whatever is lost, repeated, late or begins again, a call counts once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)
from otel_fr_collector import timeline
from otel_fr_collector.jobs import numbers as module
from otel_fr_collector.jobs.numbers import bus_factor
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import METRICS
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service
from otel_fr_collector.web.rates import rates

from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.dumps.nccl_inspector import GPU_CLOCK, Communicator, DeviceCall
from otel_fr.monitor.telemetry.metrics import RankMetrics
from otel_fr.ring import RecordState
from tests.support.otlp_messages import rank_resource
from tests.support.rank_metrics import SIZE, group, record

MEASURED = DeviceCall(Communicator("0x1", "", 0, 2, "h", 1), "all_reduce", 0, SIZE, 0.002, 0.0, GPU_CLOCK)
LABELS = {
    "process_group": "default_pg",
    "operation": "all_reduce",
    "backend": "gloo",
    "dtype": "float32",
    "size": "1MiB",
}
CALLS, DURATION = "otel_fr_collective_calls_total", "otel_fr_collective_duration_seconds"


class Collector:
    """A service with a clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000.0
        metrics = Metrics()
        self.registry = metrics.registry
        self.service = Service(metrics, Outlets(metrics), lambda: self.now, lambda: 1e9 + self.now)

    def take(self, request: ExportMetricsServiceRequest) -> None:
        asyncio.run(self.service.take(METRICS, request.SerializeToString()))

    def read(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"job_id": "a", **LABELS, **labels})


class Rank:
    """One rank and its monitor, since ``age`` seconds ago."""

    def __init__(self, collector: Collector, rank: int, run: str = "r", age: float = 0.0, world: int = 2) -> None:
        self.collector, self.rank, self.group = collector, rank, group(world)
        self.resource = rank_resource(rank, world, "a", run)
        self.metrics = RankMetrics(run, rank, 0)
        self.age = age
        self.number = 0
        self.began = collector.now

    def work(self, calls: int, seconds: float = 0.01, operation: str = "all_reduce") -> ExportMetricsServiceRequest:
        """Some calls, and the request that tells of them."""
        for _ in range(calls):
            self.number += 1
            self.metrics.add(record(self.number, seconds, self.group, operation))
        request = self.metrics.request(self.resource, ())
        assert request is not None
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            points: list[NumberDataPoint | HistogramDataPoint] = []
            points += [*metric.sum.data_points, *metric.histogram.data_points]
            for point in points:
                told_of = round((self.collector.now - self.began + self.age) * 1e9)
                point.time_unix_nano = point.start_time_unix_nano + told_of + self.number  # each is newer than the last
        return request

    def send(self, calls: int, seconds: float = 0.01, operation: str = "all_reduce") -> None:
        self.collector.take(self.work(calls, seconds, operation))


def test_the_ranks_of_a_job_are_added_up() -> None:
    collector = Collector()
    for rank in range(2):
        one = Rank(collector, rank)
        one.send(5)
        one.send(3, 0.2)
    assert collector.read(CALLS) == 16
    assert collector.read("otel_fr_collective_bytes_total") == 16 * SIZE
    assert collector.read(f"{DURATION}_count") == 16
    assert collector.read(f"{DURATION}_sum") == pytest.approx(2 * (5 * 0.01 + 3 * 0.2))
    assert collector.read(f"{DURATION}_bucket", le="0.01") == 10
    assert collector.read(f"{DURATION}_bucket", le="+Inf") == 16


def test_requests_that_are_lost_or_come_twice_or_late_change_nothing() -> None:
    collector = Collector()
    rank = Rank(collector, 0)
    first, second, third = rank.work(5), rank.work(5), rank.work(5)
    for request in (first, third, third, second, first):
        collector.take(request)
    assert collector.read(CALLS) == 15
    assert collector.read(f"{DURATION}_count") == 15


def test_a_rank_whose_monitor_starts_again_counts_on() -> None:
    collector = Collector()
    before = Rank(collector, 0)
    before.send(10)
    again = Rank(collector, 0)
    again.send(4)
    assert collector.read(CALLS) == 14
    collector.take(before.work(1))  # late, of the monitor before
    assert collector.read(CALLS) == 14


def test_after_a_restart_of_the_collector_counting_begins_at_the_first_point() -> None:
    collector = Collector()
    rank = Rank(collector, 0, age=3_600.0)
    rank.send(1_000)
    assert not collector.read(CALLS)
    rank.send(7)
    assert collector.read(CALLS) == 7
    collector.now += 7_200.0
    Rank(collector, 1, age=3_700.0).send(5)  # began while the collector knew the run
    assert collector.read(CALLS) == 12


def test_several_runs_of_a_job_are_one_counter_that_never_falls() -> None:
    collector = Collector()
    Rank(collector, 0, run="first").send(10)
    collector.now += timeline.IDLE_FORGET
    Rank(collector, 0, run="second").send(3)
    assert collector.read(CALLS) == 13
    collector.now += 10
    collector.service.runs.drop_ended(collector.now)
    assert len(collector.service.runs.by_id) == 1
    assert collector.read(CALLS) == 13
    assert collector.read(f"{DURATION}_count") == 13
    collector.now += 2 * timeline.IDLE_FORGET
    collector.service.runs.drop_ended(collector.now)
    assert collector.read(CALLS) is None
    usage = collector.service.runs.usage
    assert (usage.points, usage.series) == (0, 0)


def test_bandwidth_is_that_of_the_member_that_did_not_wait() -> None:
    collector = Collector()
    ranks = [Rank(collector, rank, world=4) for rank in range(4)]
    for rank in ranks:
        rank.send(10, 0.004 if rank.rank == 3 else 0.15)
    bus = collector.read("otel_fr_collective_bus_bandwidth_bytes_per_second")
    assert bus == pytest.approx(1.5 * SIZE / 0.004, rel=0.01)
    collector.now += 10 * module.WINDOW
    assert collector.read("otel_fr_collective_bus_bandwidth_bytes_per_second") is None


def test_failed_calls_do_not_change_the_bandwidth() -> None:
    collector = Collector()
    rank = Rank(collector, 0)
    rank.send(10, 0.004)
    rank.metrics.add(record(11, 0.001, rank.group)._replace(state=RecordState.FAILED))
    rank.send(1, 0.004)
    collector.now += 2 * module.WINDOW
    rank.send(10, 0.004)
    assert collector.read(CALLS) == 22
    bus = collector.read("otel_fr_collective_bus_bandwidth_bytes_per_second")
    assert bus == pytest.approx(SIZE / 0.004)


def test_times_on_devices_are_apart_and_bandwidth_is_that_of_the_device() -> None:
    """A made device: what NCCL's calls tell is played by the rank's metrics."""
    collector = Collector()
    for number in range(2):
        rank = Rank(collector, number)
        one = record(1, 0.5, rank.group)
        rank.metrics.add(one, DeviceTimes(RecordState.COMPLETED, one.issued_ns + 400_000_000, one.ended_ns, 0.05))
        rank.send(1, 0.5)  # the device's times of this one are not known
    assert collector.read(f"{DURATION}_count") == 4
    assert collector.read("otel_fr_collective_device_delay_seconds_count") == 2
    assert collector.read("otel_fr_collective_device_delay_seconds_sum") == pytest.approx(0.8)
    assert collector.read("otel_fr_collective_device_duration_seconds_sum") == pytest.approx(0.1)
    bus = collector.read("otel_fr_collective_bus_bandwidth_bytes_per_second")
    assert bus == pytest.approx(SIZE / 0.05)  # of two ranks, the factor is 1


def test_without_times_on_devices_their_calls_have_no_bandwidth() -> None:
    """The time up to the end of such a call is mostly that in the device's queue."""
    collector = Collector()
    rank = Rank(collector, 0)
    one = record(1, 0.5, rank.group)
    one = one._replace(signature=replace(one.signature, backend="nccl"))
    rank.metrics.add(one, DeviceTimes(RecordState.COMPLETED, one.issued_ns, one.ended_ns))
    collector.take(rank.work(0))
    assert collector.read(f"{DURATION}_count", backend="nccl") == 1
    assert collector.read("otel_fr_collective_bus_bandwidth_bytes_per_second", backend="nccl") is None


@pytest.mark.parametrize(
    ("operation", "size", "factor"),
    [
        ("all_reduce", 8, 2 * 7 / 8),
        ("all_reduce_coalesced", 2, 1.0),
        ("all_gather_into_tensor", 8, 7 / 8),
        ("reduce_scatter_tensor", 4, 3 / 4),
        ("all_to_all_single", 4, 3 / 4),
        ("gather", 4, 3 / 4),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send", 2, 1.0),
        ("all_reduce", 0, 1.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, size: int, factor: float) -> None:
    assert bus_factor(operation, size) == pytest.approx(factor)


def test_series_and_points_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 4)
    collector = Collector()
    rank = Rank(collector, 0)
    for number in range(20):
        rank.send(1, operation=f"op{number}")
    usage = collector.service.runs.usage
    assert usage.series == 5
    assert collector.read(CALLS, **dict.fromkeys(LABELS, "_OTHER")) == 16
    monkeypatch.setattr(module, "MAX_POINTS", usage.points)
    Rank(collector, 1).send(1)
    assert usage.refused["numbers"] == 3


def _instant(metric: Metric) -> None:
    for point in metric.histogram.data_points:
        point.sum = 1e-305


def _unbounded(metric: Metric) -> None:
    for point in metric.histogram.data_points:
        point.explicit_bounds[-1] = float("inf")
        point.bucket_counts[:] = [0] * (len(point.bucket_counts) - 2) + [3, 0]


@pytest.mark.parametrize("change", [_instant, _unbounded])
def test_no_numbers_make_the_list_of_jobs_anything_but_json(change: Callable[[Metric], None]) -> None:
    """One job would break the page for all."""
    collector = Collector()
    request = Rank(collector, 0).work(3)
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        change(metric)
    collector.take(request)
    (run,) = collector.service.runs.by_id.values()
    run.history.add(run.sample(collector.now))
    collector.now += 10.0
    found = asyncio.run(rates(run, collector.now, 0.0))
    assert len(found["operations"]) == 1
    json.dumps(found, allow_nan=False)


def _no_number(metric: Metric) -> None:
    for point in metric.histogram.data_points:
        point.sum = float("nan")


def _few_buckets(metric: Metric) -> None:
    for point in metric.histogram.data_points:
        del point.bucket_counts[3:]


def _one_bucket(metric: Metric) -> None:
    for point in metric.histogram.data_points:
        del point.bucket_counts[1:], point.explicit_bounds[:]


def _negative(metric: Metric) -> None:
    for point in metric.sum.data_points:
        point.as_int = -5


def _delta(metric: Metric) -> None:
    metric.sum.aggregation_temporality = metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_DELTA


@pytest.mark.parametrize("change", [_no_number, _few_buckets, _one_bucket, _negative, _delta])
def test_what_no_monitor_sends_is_left_out_and_does_no_harm(change: Callable[[Metric], None]) -> None:
    collector = Collector()
    request = Rank(collector, 0).work(3)
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        change(metric)
    collector.take(request)
    list(collector.registry.collect())
    Rank(collector, 1).send(2)
    assert (collector.read(CALLS) or 0) >= 2
    assert (collector.read(f"{DURATION}_count") or 0) >= 2


def test_times_of_nccl_inspector_are_times_on_the_device_and_give_the_bandwidth() -> None:
    collector = Collector()
    rank = Rank(collector, 0)
    for number in range(1, 11):
        one = record(number, 0.5, rank.group)
        rank.metrics.add(one._replace(signature=replace(one.signature, backend="nccl")))
        rank.metrics.add_inspected(MEASURED)
    collector.take(rank.work(0))
    read = partial(collector.read, backend="nccl")
    assert read("otel_fr_collective_device_duration_seconds_count") == 10
    assert read("otel_fr_collective_device_delay_seconds_count") is None
    assert read("otel_fr_collective_bus_bandwidth_bytes_per_second") == pytest.approx(SIZE / 0.002)
