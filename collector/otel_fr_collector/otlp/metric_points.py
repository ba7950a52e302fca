"""Decodes OTLP metrics as far as the monitors' numbers need: cumulative sums and histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

from google.protobuf.message import DecodeError

from otel_fr import semconv as names
from otel_fr.rank_report.bounds import MAX_NAME
from otel_fr_collector.otlp.message_classes import Field, make_classes
from otel_fr_collector.otlp.signals import MalformedError
from otel_fr_collector.otlp.wire import COUNT_ITEM_FROM, TooManyError, find_fields

MAX_METRIC = 1 << 20
"""Largest metric in bytes. The largest of a monitor has 129 histograms of about 400 bytes."""
MAX_POINTS = 1_024
"""Data points of a metric that are read."""
MAX_BUCKETS = 64
MAX_SITE_ATTRIBUTES = 8
CUMULATIVE = 2
"""`AggregationTemporality` of opentelemetry-proto."""
_SUM, _HISTOGRAM = 7 << 3 | 2, 9 << 3 | 2
"""Tags of the fields that contain a metric's points."""

_METRIC = make_classes(
    "otel_fr.metric",
    {
        "Metric": [Field("name", 1, "string"), Field("sum", 7, "Sum"), Field("histogram", 9, "Histogram")],
        "Sum": [Field("points", 1, "Number", repeated=True), Field("temporality", 2, "int32")],
        "Histogram": [Field("points", 1, "Buckets", repeated=True), Field("temporality", 2, "int32")],
        "Number": [
            Field("start", 2, "fixed64"),
            Field("time", 3, "fixed64"),
            Field("as_double", 4, "double"),
            Field("as_int", 6, "sfixed64"),
            Field("attributes", 7, "bytes", repeated=True),
        ],
        "Buckets": [
            Field("start", 2, "fixed64"),
            Field("time", 3, "fixed64"),
            Field("count", 4, "fixed64"),
            Field("sum", 5, "double"),
            Field("counts", 6, "fixed64", repeated=True),
            Field("bounds", 7, "double", repeated=True),
            Field("exemplars", 8, "Exemplar", repeated=True),
            Field("attributes", 9, "bytes", repeated=True),
        ],
        "Exemplar": [
            Field("time", 2, "fixed64"),
            Field("value", 3, "double"),
            Field("span_id", 4, "bytes"),
            Field("trace_id", 5, "bytes"),
            Field("attributes", 7, "KeyValue", repeated=True),
        ],
        "KeyValue": [Field("key", 1, "string"), Field("value", 2, "Value")],
        "Value": [Field("text", 1, "string"), Field("number", 3, "int64")],
    },
)["Metric"]
"""The fields of opentelemetry-proto's `Metric` that are read."""


class ExemplarOf(NamedTuple):
    """A measured value, in seconds, with its span. ``at``: Unix seconds. ``site``: the call site."""

    value: float
    at: float
    trace_id: str
    span_id: str
    site: str = ""


class Point(NamedTuple):
    """One cumulative data point.

    Attributes:
        attributes: the attributes, each still encoded.
        start, time: Unix nanoseconds by the sender's clock.
        total: the value of a sum, or the sum of a histogram's values.
        counts: the counts of a histogram's buckets. Empty for a sum.
        bounds: the bounds of the buckets.
        exemplar: the last of a histogram's exemplars, or the one before, if it names a span.
    """

    attributes: tuple[bytes, ...]
    start: int
    time: int
    total: float
    counts: tuple[int, ...] = ()
    bounds: tuple[float, ...] = ()
    exemplar: ExemplarOf | None = None


class _Metric(Protocol):
    name: str
    sum: Any
    histogram: Any


class RawMetric:
    """One metric. ``name``: as sent."""

    def __init__(self, metric: _Metric) -> None:
        self._metric = metric
        self.name = metric.name

    def points(self) -> Iterator[Point]:
        """The cumulative points whose values are finite numbers."""
        sums, histograms = self._metric.sum, self._metric.histogram
        if sums.temporality == CUMULATIVE:
            for point in sums.points[:MAX_POINTS]:
                total = point.as_double or point.as_int
                if math.isfinite(total):
                    yield Point(tuple(point.attributes), point.start, point.time, total)
        if histograms.temporality == CUMULATIVE:
            for point in histograms.points[:MAX_POINTS]:
                if math.isfinite(point.sum) and len(point.counts) <= MAX_BUCKETS:
                    yield Point(
                        tuple(point.attributes),
                        point.start,
                        point.time,
                        point.sum,
                        tuple(point.counts),
                        tuple(point.bounds),
                        _exemplar(point.exemplars),
                    )


def _exemplar(found: Sequence[Any]) -> ExemplarOf | None:
    """The last exemplar if it names a span, or the one before."""
    for one in reversed(found[-2:]):
        if len(one.trace_id) == 16 and len(one.span_id) == 8 and math.isfinite(one.value):
            return ExemplarOf(one.value, one.time / 1e9, one.trace_id.hex(), one.span_id.hex(), _site(one.attributes))
    return None


def _site(attributes: Sequence[Any]) -> str:
    """The call site as ``file:line function``, or "" if it is not known."""
    values = {item.key: item.value for item in attributes[:MAX_SITE_ATTRIBUTES]}
    if not {names.CODE_FILE, names.CODE_LINE, names.CODE_FUNCTION} <= values.keys():
        return ""
    file, line, function = (values[key] for key in (names.CODE_FILE, names.CODE_LINE, names.CODE_FUNCTION))
    return f"{file.text}:{line.number} {function.text}"[:MAX_NAME]


def read_metric(data: bytes) -> RawMetric:
    """Decode a metric.

    Raises:
        ValueError: the bytes are not a metric, or it is too large.
    """
    if len(data) > MAX_METRIC:
        raise ValueError(f"a metric is larger than {MAX_METRIC} bytes")
    try:
        for tag in (_SUM, _HISTOGRAM) if len(data) > COUNT_ITEM_FROM else ():
            for at, end in find_fields(data, tag, MAX_POINTS)[1]:
                find_fields(data, -1, MAX_POINTS + 8, at, end)
        return RawMetric(cast("_Metric", _METRIC.FromString(data)))
    except TooManyError as error:
        raise ValueError(f"a metric has more than {MAX_POINTS} points") from error
    except (DecodeError, MalformedError) as error:
        raise ValueError("a metric cannot be decoded") from error
