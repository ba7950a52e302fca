"""The numbers of one rank as OTLP metrics: what is counted, in which classes, and within which bounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric, NumberDataPoint
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.monitor.telemetry import metrics as module
from otel_fr.monitor.telemetry.metrics import BOUNDS, RankMetrics, Schedule, dtype_class, message_bytes, size_class
from otel_fr.monitor.telemetry.span_builder import trace_id
from otel_fr.ring import KIND_GROUP, Activity, Record, RecordState, SignatureDef
from tests.support.records import made_activity, made_record
from tests.support.rings import float_signature

RUN = identity.run_id("job", 0, "n")
WALL = 1_700_000_000 * 10**9
Key = tuple[tuple[str, str | int], ...]


def signature(operation: str = "all_reduce") -> SignatureDef:
    return float_signature(operation, sizes=((1_000,),), input_bytes=4_000, output_bytes=4_000)


def record(number: int, seconds: float | None = 0.003, of: SignatureDef | None = None, **more: object) -> Record:
    return made_record(number, seconds, of or signature(), **more)


def sent(metrics: RankMetrics, in_flight: tuple[Record, ...] = ()) -> dict[str, Metric]:
    request = metrics.request(Resource(), in_flight)
    assert request is not None
    (entry,) = request.resource_metrics
    (scope,) = entry.scope_metrics
    assert scope.scope.name == names.SCOPE_NAME
    return {metric.name: metric for metric in scope.metrics}


def attributes(point: NumberDataPoint | HistogramDataPoint) -> dict[str, str | int]:
    values = ((one.key, one.value) for one in point.attributes)
    return {key: value.string_value if value.HasField("string_value") else value.int_value for key, value in values}


def test_calls_bytes_and_durations_are_cumulative_with_the_classes_as_attributes() -> None:
    metrics, of = RankMetrics(RUN, 2, WALL), signature()
    assert metrics.request(Resource(), ()) is None
    for number in range(1, 6):
        metrics.add(record(number, 0.003, of))
    first = sent(metrics)
    metrics.add(record(6, 0.2, of))
    second = sent(metrics)
    for found, count in ((first, 5), (second, 6)):
        (calls,), (size,) = (found[name].sum.data_points for name in (names.METRIC_CALLS, names.METRIC_IO))
        (took,) = found[names.METRIC_DURATION].histogram.data_points
        assert (calls.as_int, size.as_int, took.count) == (count, count * 4_000, count)
        assert sum(took.bucket_counts) == count
        assert len(took.bucket_counts) == len(BOUNDS) + 1
        assert calls.start_time_unix_nano == took.start_time_unix_nano < took.time_unix_nano
    assert took.sum == pytest.approx(5 * 0.003 + 0.2)
    assert took.bucket_counts[BOUNDS.index(0.005)] == 5
    assert attributes(took) == {
        names.OPERATION: "all_reduce",
        names.BACKEND: "gloo",
        names.GROUP_DESCRIPTION: "default_pg",
        names.GROUP_SIZE: 4,
        names.DTYPE_CLASS: "float32",
        names.SIZE_CLASS: "4KiB",
    }
    assert {metric.name: metric.unit for metric in second.values()} == {
        names.METRIC_CALLS: "{call}",
        names.METRIC_IO: "By",
        names.METRIC_DURATION: "s",
        names.METRIC_IN_FLIGHT: "{call}",
    }
    assert first[names.METRIC_CALLS].sum.is_monotonic
    assert not first[names.METRIC_IN_FLIGHT].sum.is_monotonic


def test_the_exemplar_is_the_span_of_the_slowest_call_since_the_request_before() -> None:
    metrics, of = RankMetrics(RUN, 2, WALL), signature()
    slow = record(2, 0.4, of)
    for one in (record(1, 0.003, of), slow, record(3, 0.1, of)):
        metrics.add(one)
    (exemplar,) = sent(metrics)[names.METRIC_DURATION].histogram.data_points[0].exemplars
    trace = trace_id(RUN, 2, slow)
    assert (exemplar.trace_id, exemplar.span_id) == (trace, identity.span_id(trace, 2, 2))
    assert exemplar.as_double == pytest.approx(0.4)
    assert exemplar.time_unix_nano == WALL + slow.issued_ns + 400_000_000
    assert not sent(metrics)[names.METRIC_DURATION].histogram.data_points[0].exemplars
    silent = RankMetrics(RUN, 2, WALL, wants_exemplars=False)
    silent.add(slow)
    assert not sent(silent)[names.METRIC_DURATION].histogram.data_points[0].exemplars


def test_times_in_the_queue_and_on_the_device_are_apart_where_they_are_known() -> None:
    metrics, of = RankMetrics(RUN, 2, WALL), signature()
    slow = record(2, 0.5, of)
    began = slow.issued_ns + 300_000_000
    metrics.add(record(1, 0.003, of), None)
    metrics.add(slow, DeviceTimes(RecordState.COMPLETED, began, slow.ended_ns, 0.15))
    metrics.add(record(3, 0.003, of), DeviceTimes(RecordState.COMPLETED, None, 4 * 10**9, None))  # without timing
    found = sent(metrics)
    (took,), (delay,), (ran,) = (
        found[name].histogram.data_points
        for name in (names.METRIC_DURATION, names.METRIC_DEVICE_DELAY, names.METRIC_DEVICE_DURATION)
    )
    assert (took.count, delay.count, ran.count) == (3, 1, 1)
    assert delay.sum == pytest.approx(0.3)
    assert ran.sum == 0.15
    assert attributes(delay) == attributes(ran) == attributes(took)
    trace = trace_id(RUN, 2, slow)
    assert ran.exemplars[0].span_id == identity.span_id(trace, 2, slow.record_id)
    assert {found[name].unit for name in (names.METRIC_DEVICE_DELAY, names.METRIC_DEVICE_DURATION)} == {"s"}


def test_calls_without_a_known_end_are_counted_and_creations_of_groups_are_not() -> None:
    metrics = RankMetrics(RUN, 0, WALL)
    metrics.add(record(1, None, state=RecordState.UNKNOWN))
    metrics.add(record(2, 1.5, state=RecordState.FAILED))
    metrics.add(record(3, 0.1, kind=KIND_GROUP))
    found = sent(metrics, (record(4, None, state=RecordState.IN_FLIGHT),))
    calls = {attributes(p).get(names.ERROR_TYPE): p.as_int for p in found[names.METRIC_CALLS].sum.data_points}
    assert calls == {None: 1, names.ERROR_TIMEOUT: 1}
    assert sum(point.count for point in found[names.METRIC_DURATION].histogram.data_points) == 1
    (in_flight,) = found[names.METRIC_IN_FLIGHT].sum.data_points
    assert (in_flight.as_int, attributes(in_flight)[names.GROUP_SIZE]) == (1, 4)


def test_series_are_bounded_and_the_rest_is_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 5)
    monkeypatch.setattr(module, "MAX_KNOWN", 7)
    metrics = RankMetrics(RUN, 0, WALL)
    for number in range(1, 41):
        metrics.add(record(number, 0.001, signature(f"op{number % 20}")))
    points = sent(metrics)[names.METRIC_CALLS].sum.data_points
    assert len(points) == 6
    by_name = {attributes(point)[names.OPERATION]: point.as_int for point in points}
    assert by_name[names.OTHER] == 30
    assert sum(by_name.values()) == 40


def step(number: int, seconds: float, *, automatic: bool) -> Activity:
    began = number * 10**9
    return made_activity(number, began, began + round(seconds * 1e9), is_step=True, name="", is_automatic=automatic)


def test_steps_have_a_histogram_by_their_source() -> None:
    metrics = RankMetrics(RUN, 0, WALL)
    for number in range(4):
        metrics.add_step(step(number, 0.25, automatic=True))
    metrics.add_step(replace(step(9, 1.0, automatic=False), ended_ns=None))
    (point,) = sent(metrics)[names.METRIC_STEP_DURATION].histogram.data_points
    assert (point.count, point.sum, attributes(point)) == (4, 1.0, {names.STEP_SOURCE: "optimizer"})


@pytest.mark.parametrize(
    ("size", "name"),
    [(0, "0"), (1, "4KiB"), (4096, "4KiB"), (4097, "64KiB"), (1 << 28, "256MiB"), ((1 << 28) + 1, "larger")],
)
def test_a_size_class_is_named_by_its_upper_bound(size: int, name: str) -> None:
    assert size_class(size) == name


@pytest.mark.parametrize(
    ("dtypes", "name"),
    [
        ((), "none"),
        (("Float",), "float32"),
        (("BFloat16", "BFloat16"), "bfloat16"),
        (("Long", "Byte"), "integer"),
        (("Long", "Float"), "mixed"),
        (("Float8_e4m3fn",), "float8"),
        (("ComplexFloat",), "complex"),
        (("QInt8",), "other"),
    ],
)
def test_dtypes_are_put_into_classes(dtypes: tuple[str, ...], name: str) -> None:
    assert dtype_class(dtypes) == name


def test_the_size_is_that_of_the_whole_array_on_every_rank() -> None:
    def sized(operation: str, given: int, taken: int) -> int:
        return message_bytes(replace(signature(operation), input_bytes=given, output_bytes=taken), 4)

    assert sized("all_reduce", 100, 100) == 100
    assert sized("all_gather_into_tensor", 25, 100) == sized("reduce_scatter_tensor", 100, 25) == 100
    assert sized("gather", 25, 100) == sized("gather", 25, 0) == 100  # the root, and another rank
    assert sized("gather_into_tensor", 25, 100) == sized("gather_into_tensor", 25, 0) == 100
    assert sized("scatter", 100, 25) == sized("scatter", 0, 25) == 100


def test_requests_are_due_once_an_interval_and_the_ranks_spread_theirs() -> None:
    times = []
    for rank in range(8):
        schedule = Schedule(15.0, rank, 100.0)
        due = [second / 10 for second in range(1_000, 2_000) if schedule.is_due(second / 10)]
        assert due[0] <= 110.1
        assert all(14.9 <= later - one <= 15.2 for one, later in pairwise(due))
        times.append(due[0])
    assert len(set(times)) >= 6


def test_missed_requests_are_not_made_up_for() -> None:
    schedule = Schedule(15.0, 0, 100.0)
    due = [second for second in (110.0, 200.0, 200.1, 214.9, 215.0) if schedule.is_due(second)]
    assert due == [110.0, 200.0, 215.0]
