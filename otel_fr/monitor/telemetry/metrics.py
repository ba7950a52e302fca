"""One rank's OTLP metrics: calls, bytes and durations by operation and group, calls in flight, steps.

They count every call that has ended, independently of span sampling. All are cumulative since the monitor started or
the process became a rank of another run, so that a lost or repeated request does no harm. The attributes have few
values each (docs/reference/telemetry.md).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    Exemplar,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.dumps.nccl_inspector import DeviceCall
from otel_fr.monitor.nccl.inspector_durations import InspectorDurations
from otel_fr.monitor.telemetry.span_builder import SCOPE, error_type, trace_id
from otel_fr.operations import family, pieces, sides
from otel_fr.otlp_attributes import attributes
from otel_fr.presentation import group_name
from otel_fr.ring import KIND_GROUP, Activity, GroupDef, Record, SignatureDef
from otel_fr.torch_recorder import is_followed

FIRST = 5.0
"""Seconds until the first request. The ranks of a job spread their first requests over as much time again."""
MAX_SERIES = 128
"""Most series of one rank. Calls of further kinds are counted in one series with `names.OTHER` for all attributes."""
MAX_KNOWN = 4_096
"""How many signatures and groups have a cached series. A job with ever new shapes must not take ever more memory."""
BOUNDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the histograms' buckets, in seconds: from a small all-reduce within a machine to a stall."""
SIZES = (
    (0, "0"),
    (4 << 10, "4KiB"),
    (64 << 10, "64KiB"),
    (1 << 20, "1MiB"),
    (16 << 20, "16MiB"),
    (256 << 20, "256MiB"),
)
"""Most bytes of each size class, and its name. Larger sizes are `LARGER`."""
LARGER = "larger"

_SIZE_BOUNDS = tuple(most for most, _ in SIZES)
_DTYPES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Bool": "bool",
    **dict.fromkeys(("Long", "Int", "Short", "Char", "Byte", "UInt64", "UInt32", "UInt16"), "integer"),
}
_PREFIXES = (("Float8", "float8"), ("Float4", "float4"), ("Complex", "complex"))


def size_class(size: int) -> str:
    """Return the name of the smallest class that includes ``size`` bytes."""
    at = bisect_left(_SIZE_BOUNDS, size)
    return SIZES[at][1] if at < len(SIZES) else LARGER


def dtype_class(dtypes: Iterable[str]) -> str:
    """Return ``float32``, ``bfloat16``, ``integer``, ...; ``none`` without tensors, ``mixed`` if they differ."""
    found = {_dtype_class(dtype) for dtype in dtypes}
    return found.pop() if len(found) == 1 else "mixed" if found else "none"


def _dtype_class(dtype: str) -> str:
    known = _DTYPES.get(dtype)
    return known or next((name for prefix, name in _PREFIXES if dtype.startswith(prefix)), "other")


def message_bytes(signature: SignatureDef, group_size: int) -> int:
    """Return the size of a collective as nccl-tests counts it: the size of the full array, the same on all ranks.

    Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md. In gather and scatter only the root has
    the full array, so its size is computed from the piece.
    """
    whole = family(signature.operation)
    if pieces(whole) == "root":
        return sides(whole, signature.input_bytes, signature.output_bytes)[0] * max(1, group_size)
    return max(signature.input_bytes, signature.output_bytes)


class _Key(NamedTuple):
    """The attributes that the calls of one series share, in the order of `_ATTRIBUTES`."""

    operation: str
    backend: str
    group: str
    group_size: int
    dtype: str
    size: str
    error: str | None


_ATTRIBUTES = (
    names.OPERATION,
    names.BACKEND,
    names.GROUP_DESCRIPTION,
    names.GROUP_SIZE,
    names.DTYPE_CLASS,
    names.SIZE_CLASS,
    names.ERROR_TYPE,
)
_RECORDER = "recorder"
_INSPECTED = attributes({names.DEVICE_SOURCE: names.DEVICE_SOURCE_INSPECTOR})
_REST = _Key(names.OTHER, names.OTHER, names.OTHER, 0, names.OTHER, names.OTHER, None)


class _Histogram:
    """Durations in seconds. ``slowest``: the slowest call since the last request, with its record."""

    __slots__ = ("buckets", "slowest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.slowest: tuple[float, Record] | None = None

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def add_call(self, seconds: float, record: Record, has_span: bool) -> None:
        self.add(seconds)
        if has_span and (self.slowest is None or seconds > self.slowest[0]):
            self.slowest = seconds, record

    def point(self, attributes: Sequence[KeyValue], start: int, now: int) -> HistogramDataPoint:
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=start,
            time_unix_nano=now,
            count=sum(self.buckets),
            sum=self.total,
            bucket_counts=self.buckets,
            explicit_bounds=BOUNDS,
        )


class _Series:
    """One series of calls.

    Attributes:
        delays, runs: times in the device's queue, and durations there, of the calls for which they are known; None:
            there are none.
        inspected: durations on the device as NCCL Inspector measured them; None: there are none.
    """

    __slots__ = ("attributes", "bytes", "calls", "delays", "durations", "inspected", "runs")

    def __init__(self, key: _Key) -> None:
        given = {name: value for name, value in zip(_ATTRIBUTES, key, strict=True) if value or value == 0}
        self.attributes = attributes(given)
        self.calls = self.bytes = 0
        self.durations = _Histogram()
        self.delays: _Histogram | None = None
        self.runs: _Histogram | None = None
        self.inspected: _Histogram | None = None

    def add_device(self, record: Record, began_ns: int, seconds: float, has_span: bool) -> None:
        if self.delays is None or self.runs is None:
            self.delays, self.runs = _Histogram(), _Histogram()
        self.delays.add_call(max(0, began_ns - record.issued_ns) / 1e9, record, has_span)
        self.runs.add_call(max(0.0, seconds), record, has_span)


class RankMetrics:
    """The metrics of one rank of one run.

    Args:
        run, rank: used for the ids of the spans to which exemplars point.
        wall_offset_ns: see `SpanBuilder`.
        wants_exemplars: True if spans are sent.
    """

    def __init__(self, run: str, rank: int, wall_offset_ns: int, *, wants_exemplars: bool = True) -> None:
        self._run, self._rank, self._wall_offset_ns = run, rank, wall_offset_ns
        self._wants_exemplars = wants_exemplars
        self._start = time.time_ns()
        self._series: dict[_Key, _Series] = {}
        # By object identity, like the span builder's templates. The values keep these objects, so ids are not reused.
        self._known: dict[tuple[int, int, str | None], tuple[_Series, int, SignatureDef, GroupDef]] = {}
        self._steps: dict[str, _Histogram] = {}
        self._inspector: InspectorDurations[_Series] = InspectorDurations(rank)
        self._source: str | None = None
        """The source of times on the device. If there are two, the first one counts; None: no source yet."""

    def add(self, record: Record, device: DeviceTimes | None = None, *, has_span: bool = True) -> None:
        """Count a call that has ended. Calls that create or destroy groups transfer nothing, and are not counted.

        Args:
            device: when the call ran on the device, if known.
            has_span: True if the call's span is sent, so that an exemplar may name it.
        """
        if record.kind == KIND_GROUP:
            return
        error = error_type(record)
        known = self._known.get((id(record.signature), id(record.group), error)) or self._find(record, error)
        series, size = known[:2]
        series.calls += 1
        series.bytes += size
        if record.ended_ns and not is_followed(record.signature.backend):
            series.durations.add_call(max(0, record.ended_ns - record.issued_ns) / 1e9, record, has_span)
        if device is not None and device.began_ns is not None and device.duration_s is not None:
            self._source = self._source or _RECORDER
            if self._source == _RECORDER:
                series.add_device(record, device.began_ns, device.duration_s, has_span)

    def add_inspected(self, call: DeviceCall) -> None:
        """Note how long the device executed a call, as measured by NCCL Inspector."""
        self._inspector.note(call)

    def _count_inspected(self) -> None:
        for series, durations in self._inspector.take():
            self._source = self._source or names.DEVICE_SOURCE_INSPECTOR
            if self._source == names.DEVICE_SOURCE_INSPECTOR:
                series.inspected = series.inspected or _Histogram()
                for seconds in durations:
                    series.inspected.add(seconds)

    def add_step(self, step: Activity) -> None:
        """Count a training step that has ended."""
        if step.is_step and step.ended_ns:
            source = "optimizer" if step.is_automatic else "program"
            self._steps.setdefault(source, _Histogram()).add(max(0, step.ended_ns - step.began_ns) / 1e9)

    def _find(self, record: Record, error: str | None) -> tuple[_Series, int, SignatureDef, GroupDef]:
        signature, group = record.signature, record.group
        members = len(group.ranks)
        size = message_bytes(signature, members)
        dtypes = signature.input_dtypes or signature.output_dtypes
        label, dtype = group_name(group.name, group.description), dtype_class(dtypes)
        key = _Key(signature.operation, signature.backend, label, members, dtype, size_class(size), error)
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MAX_SERIES:
                key = _REST
            series = self._series.setdefault(key, _Series(key))
        self._inspector.know(group, signature, series)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        found = self._known[id(signature), id(group), error] = series, size, signature, group
        return found

    def request(self, resource: Resource, in_flight: Iterable[Record]) -> ExportMetricsServiceRequest | None:
        """Return a request with all metrics as they are now. None: there are none yet."""
        self._count_inspected()
        if not self._series and not self._steps:
            return None
        now = time.time_ns()
        request = ExportMetricsServiceRequest()
        scope = request.resource_metrics.add(resource=resource).scope_metrics.add(scope=SCOPE)
        found = scope.metrics
        calls = found.add(name=names.METRIC_CALLS, unit=names.UNIT_CALLS, description="Calls that have ended.")
        size = found.add(name=names.METRIC_IO, unit=names.UNIT_BYTES, description="Size of the calls that have ended.")
        for metric in (calls, size):
            metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            metric.sum.is_monotonic = True
        for series in self._series.values():
            calls.sum.data_points.append(self._number(series.attributes, series.calls, now))
            size.sum.data_points.append(self._number(series.attributes, series.bytes, now))
        self._add_durations(scope, now)
        self._add_in_flight(found.add(), in_flight, now)
        if self._steps:
            self._add_steps(found.add(), now)
        return request

    def _add_durations(self, scope: ScopeMetrics, now: int) -> None:
        of_calls: tuple[tuple[str, str, Callable[[_Series], _Histogram | None]], ...] = (
            (
                names.METRIC_DURATION,
                "Time from enqueueing a call to its end: the wait for other ranks, and the transfer.",
                lambda one: one.durations,
            ),
            (
                names.METRIC_DEVICE_DELAY,
                "Time in the device's queue: from enqueueing a call until the device was seen to start it.",
                lambda one: one.delays,
            ),
            (
                names.METRIC_DEVICE_DURATION,
                "Time that the device executed a call: the wait for other ranks there, and the transfer.",
                lambda one: one.runs or one.inspected,
            ),
        )
        for name, description, of in of_calls:
            known = [(one, durations) for one in self._series.values() if (durations := of(one)) is not None]
            if not known:
                continue
            metric = scope.metrics.add(name=name, unit=names.UNIT_SECONDS, description=description)
            metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
            for series, durations in known:
                source = _INSPECTED if durations is series.inspected else ()
                point = durations.point((*series.attributes, *source), self._start, now)
                point.exemplars.extend(self._exemplars(durations))
                metric.histogram.data_points.append(point)

    def _exemplars(self, durations: _Histogram) -> list[Exemplar]:
        """Return the slowest call since the last request as an exemplar, which links to its span."""
        slowest, durations.slowest = durations.slowest, None
        if slowest is None or not self._wants_exemplars:
            return []
        seconds, record = slowest
        trace = trace_id(self._run, self._rank, record)
        return [
            Exemplar(
                time_unix_nano=(record.ended_ns or record.issued_ns) + self._wall_offset_ns,
                as_double=seconds,
                trace_id=trace,
                span_id=identity.span_id(trace, self._rank, record.record_id),
                filtered_attributes=_site(record),
            )
        ]

    def _add_in_flight(self, metric: Metric, records: Iterable[Record], now: int) -> None:
        metric.name, metric.unit = names.METRIC_IN_FLIGHT, names.UNIT_CALLS
        metric.description = "Calls enqueued but not ended."
        metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        tally = Counter((group_name(one.group.name, one.group.description), len(one.group.ranks)) for one in records)
        for group, members in {(key.group, key.group_size) for key in self._series} | tally.keys():
            given = attributes({names.GROUP_DESCRIPTION: group, names.GROUP_SIZE: members})
            metric.sum.data_points.append(self._number(given, tally[group, members], now))

    def _number(self, attributes: Sequence[KeyValue], value: int, now: int) -> NumberDataPoint:
        return NumberDataPoint(
            attributes=attributes, start_time_unix_nano=self._start, time_unix_nano=now, as_int=value
        )

    def _add_steps(self, metric: Metric, now: int) -> None:
        metric.name, metric.unit = names.METRIC_STEP_DURATION, names.UNIT_SECONDS
        metric.description = "Duration of a training step."
        metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        for source, durations in self._steps.items():
            given = attributes({names.STEP_SOURCE: source})
            metric.histogram.data_points.append(durations.point(given, self._start, now))


def _site(record: Record) -> list[KeyValue]:
    """Return the attributes that say where the call was made."""
    if not record.site.frames:
        return []
    file, line, function = record.site.frames[0]
    return attributes({names.CODE_FUNCTION: function, names.CODE_FILE: file, names.CODE_LINE: line})


class Schedule:
    """Decides when requests are due.

    Args:
        interval: seconds between requests.
        rank: spreads the requests of a job's ranks.
        now: monotonic seconds.
    """

    def __init__(self, interval: float, rank: int, now: float) -> None:
        self._interval = interval
        # 0.618...: the fractional parts of its multiples are spread evenly (Knuth, TAOCP 6.4).
        self._at = now + min(interval, FIRST) * (1.0 + rank * 0.6180339887 % 1.0)

    def is_due(self, now: float) -> bool:
        """Return True once in each interval."""
        if now < self._at:
            return False
        self._at += self._interval
        if self._at <= now:  # at least one interval was missed
            self._at = now + self._interval
        return True
