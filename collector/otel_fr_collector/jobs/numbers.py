"""The numbers of one run: calls, bytes and durations by operation and group, from the metrics that its monitors send.

Monitors send totals since they started. Only the difference to the previous point is added here, so requests that come
twice, late or not at all do no harm, and a rank that starts again begins at 0. The first point of a rank counts from 0
only if its series is not older than the first telemetry of the run here. Otherwise, the collector was restarted or the
run was evicted, and counting begins at that point, because a total that jumps would show as a burst of calls.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from otel_fr import semconv as names
from otel_fr.operations import MESSAGES, PIECEWISE, family
from otel_fr.torch_recorder import ends_are_seen
from otel_fr_collector.jobs.bounded import Cache, CacheBudget
from otel_fr_collector.jobs.calls import MAX_GROUP_NAME, MAX_OPERATION
from otel_fr_collector.jobs.usage import POINT_BYTES, SERIES_BYTES, Usage
from otel_fr_collector.otlp.metric_points import ExemplarOf, Point

MAX_SERIES = 256
"""Series of one run. Calls without a series of their own are counted in the series of `OTHER`."""
MAX_POINTS = 131_072
"""Latest points of ranks that are kept, over all runs: 8 for each of 16,384 ranks."""
MAX_POINTS_OF_RANK = 768
"""A monitor sends at most 129 points of each of five metrics (otel_fr/monitor/telemetry/metrics.py)."""
LATE_START = 30.0
"""A rank's monitor may have started this many seconds before the run's first telemetry."""
WINDOW = 30.0
"""Bandwidths come from the durations of this many seconds: two requests of each monitor."""
MAX_VALUE = 1e18
"""Largest total that is taken: no job has more calls, bytes or seconds."""
_ATTRIBUTES = 16
_NANO = 1e9


class Key(NamedTuple):
    """What the calls of one series have in common (docs/reference/telemetry.md). ``group_size``: 0: not known."""

    operation: str
    group: str
    group_size: int
    backend: str
    dtype: str
    size: str

    @property
    def members(self) -> int:
        """Calls of one collective, or of a send with its receive; 1 if the group's size is not known."""
        return 2 if self.operation in MESSAGES else max(1, self.group_size)


OTHER = Key(names.OTHER, names.OTHER, 0, names.OTHER, names.OTHER, names.OTHER)


def bus_factor(operation: str, group_size: int) -> float:
    """Bus bandwidth divided by algorithm bandwidth; 1 if the group's size is not known.

    Sources: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; for gather and scatter,
    https://github.com/NVIDIA/nccl-tests/blob/master/src/gather.cu.
    """
    if group_size < 1:
        return 1.0
    # The bus carries the other ranks' pieces: twice in an all_reduce. Without pieces, it carries the array once.
    whole = family(operation)
    passes = 2.0 if whole == "all_reduce" else 1.0 if whole in PIECEWISE else 0.0
    return passes * (group_size - 1) / group_size or 1.0


class Speed(NamedTuple):
    """Seconds and bytes per call, and number of calls, of the member that spent the least time in a series' calls.

    The others waited for it, so its time is the nearest to the time of the transfer alone. For calls on devices, only
    times on the device count.
    """

    seconds: float
    bytes: float
    calls: int


@dataclass(slots=True)
class Durations:
    """A histogram, over the ranks of a run.

    Attributes:
        seconds: sum of the durations. counts: by `Numbers.bounds`.
        exemplar: the latest slow call.
    """

    seconds: float = 0.0
    counts: list[int] = field(default_factory=list)
    exemplar: ExemplarOf | None = None

    def add(self, other: Durations) -> None:
        """Add the totals of another run."""
        self.seconds += other.seconds
        self.counts = add_counts(self.counts, other.counts)
        self.exemplar = other.exemplar or self.exemplar

    def add_point(self, seconds: float, counts: tuple[int, ...], exemplar: ExemplarOf | None) -> int:
        """Add the increase from one rank's point; returns its number of calls."""
        self.seconds += seconds
        self.counts = add_counts(self.counts, counts)
        self.exemplar = exemplar or self.exemplar
        return sum(counts)


@dataclass(slots=True)
class Series:
    """Totals over the ranks of a run.

    Attributes:
        took: from enqueueing the calls to their ends. delays, runs: in the devices' queues and on the devices, for
            calls whose times there are known.
        window: number of the window that ``fastest`` belongs to. before: the fastest of the previous window.
    """

    calls: float = 0
    bytes: float = 0
    took: Durations = field(default_factory=Durations)
    delays: Durations = field(default_factory=Durations)
    runs: Durations = field(default_factory=Durations)
    window: int = -1
    fastest: Speed | None = None
    before: Speed | None = None

    def speed(self, window: int) -> Speed | None:
        """The speed in the latest window that is over, else in the current one; None: nothing was sent lately."""
        if window == self.window:
            return self.before or self.fastest
        return self.fastest if window == self.window + 1 else None

    def note(self, window: int, speed: Speed) -> None:
        """Take one rank's speed."""
        if window != self.window:
            self.before = self.fastest if window == self.window + 1 else None
            self.window, self.fastest = window, None
        if self.fastest is None or speed.seconds < self.fastest.seconds:
            self.fastest = speed

    def add(self, other: Series) -> None:
        """Add the totals of another run."""
        self.calls += other.calls
        self.bytes += other.bytes
        self.took.add(other.took)
        self.delays.add(other.delays)
        self.runs.add(other.runs)


def add_counts(some: list[int], more: Iterable[int]) -> list[int]:
    """The sums of two histograms with the same bounds. Either may be empty."""
    more = list(more)
    return [a + b for a, b in zip(some, more, strict=True)] if some and more else some or more


@dataclass(slots=True)
class _Added:
    """What one request of a rank has added to a series."""

    calls: float
    bytes: float = 0.0


class _Last(NamedTuple):
    """The latest point of one rank's series."""

    start: int
    time: int
    total: float
    counts: array[int]


class Labels(NamedTuple):
    """The series of a point. ``variant`` distinguishes points of a series: an ``error.type``, or what counts steps."""

    key: Key
    variant: str


PointKey = tuple[str, Labels]
"""Name of the metric, and the series."""


class Numbers:
    """The numbers of one run, bounded.

    Attributes:
        series: by key. steps: durations of the ranks' training steps. bounds: of all histograms, seconds.
        collectives, size: how many collectives there were, and their bytes, counted once for all members. A send with
            its receive counts as one.
        covered: seconds that these numbers cover, summed over the ranks. ranks: how many ranks send numbers.
    """

    def __init__(self, usage: Usage, clock: Callable[[], float] = time.monotonic) -> None:
        self._usage = usage
        self._clock = clock
        self._since = clock()
        self._last: dict[int, dict[PointKey, _Last]] = {}
        self._latest: tuple[int, dict[Key, _Added]] = (-1, {})
        """The rank that sent calls last, and what its request added to each series, without failed calls.
        `_note_speed` uses this."""
        self.series: dict[Key, Series] = {}
        self.steps = Durations()
        self.bounds: tuple[float, ...] = ()
        self.collectives = self.size = self.covered = 0.0
        self._told_until: dict[int, int] = {}
        """By rank, the time up to which its calls are reported: Unix nanoseconds, by the rank's clock."""

    def add(self, rank: int, name: str, labels: Labels, point: Point) -> None:  # noqa: C901, PLR0912
        """Take one point of a rank."""
        if not 0 <= point.total <= MAX_VALUE or max(point.counts, default=0) > MAX_VALUE:
            return
        if point.counts and not self._fits(point):
            return
        key = labels.key
        more = self._more(rank, (name, labels), point)
        if more is None:
            return
        total, counts = more
        if name == names.METRIC_STEP_DURATION:
            self.steps.add_point(total, counts, None)
            return
        series = self._series(key)
        if series is None:
            return
        if name == names.METRIC_CALLS:
            self._cover(rank, point)
            series.calls += total
            self.collectives += total / key.members
            if self._latest[0] != rank:
                self._latest = rank, {}
            if not labels.variant:
                self._latest[1][key] = _Added(calls=total)
        elif name == names.METRIC_IO:
            series.bytes += total
            self.size += total / key.members
            if self._latest[0] == rank and key in self._latest[1] and not labels.variant:
                self._latest[1][key].bytes = total
        elif name == names.METRIC_DURATION:
            series.took.add_point(total, counts, point.exemplar)
            # The time on the device is nearer to the time of the transfer; the time to the end includes the queue.
            if not series.runs.counts and not ends_are_seen(key.backend):
                self._note_speed(rank, labels, series, total, sum(counts))
        elif name == names.METRIC_DEVICE_DELAY:
            series.delays.add_point(total, counts, point.exemplar)
        elif name == names.METRIC_DEVICE_DURATION:
            series.runs.add_point(total, counts, point.exemplar)
            self._note_speed(rank, labels, series, total, sum(counts))

    @property
    def ranks(self) -> int:
        return len(self._told_until)

    def _cover(self, rank: int, point: Point) -> None:
        """Add the time that a rank's point covers: since its previous point, or since its counting began."""
        since = self._told_until.get(rank, point.start)
        if point.time > since:
            self.covered += (point.time - max(since, point.start)) / _NANO
            self._told_until[rank] = point.time

    def _note_speed(self, rank: int, labels: Labels, series: Series, seconds: float, calls: int) -> None:
        """Note a rank's speed. Failed calls do not count: how long they took says nothing about the transfer."""
        added = self._latest[1].get(labels.key) if self._latest[0] == rank and not labels.variant else None
        if added is not None and added.calls and added.bytes and calls:
            speed = Speed(seconds / calls, added.bytes / added.calls, calls)
            series.note(self.window(), speed)

    def release(self) -> None:
        """Free the room of the run, which is dropped.

        Nothing is freed when a rank ends: its last points may come later, and would be counted from 0.
        """
        self._usage.points -= sum(map(len, self._last.values()))
        self._usage.series -= len(self.series)
        self._last.clear()
        self._told_until.clear()
        self.series.clear()

    def window(self) -> int:
        """Number of the current window of `Series.speed`."""
        return int(self._clock() / WINDOW)

    def bus_bandwidth(self) -> float | None:
        """Bus bandwidth of the latest collectives of all series, in bytes per second; None: there were none."""
        window, moved, took = self.window(), 0.0, 0.0
        for key, series in self.series.items():
            speed = series.speed(window)
            if speed is not None:
                moved += speed.bytes * speed.calls * bus_factor(key.operation, key.group_size)
                took += speed.seconds * speed.calls
        return moved / took if moved and took else None

    def _fits(self, point: Point) -> bool:
        """Whether a histogram has the bounds of the run's first one. All monitors of a run use the same bounds."""
        if not point.bounds or len(point.counts) != len(point.bounds) + 1:
            return False
        if not self.bounds and all(a < b for a, b in zip(point.bounds, point.bounds[1:], strict=False)):
            self.bounds = point.bounds
        return point.bounds == self.bounds

    def _more(self, rank: int, key: PointKey, point: Point) -> tuple[float, tuple[int, ...]] | None:
        """The increase that a point brings; None: none, or there is no room for it."""
        own = self._last.get(rank)
        last = own.get(key) if own is not None else None
        if last is None:
            usage = self._usage
            is_full = own is not None and len(own) >= MAX_POINTS_OF_RANK
            if is_full or usage.points >= MAX_POINTS or not usage.has_room(POINT_BYTES):
                usage.refused["numbers"] += 1
                return None
            usage.points += 1
            own = self._last.setdefault(rank, {})
        elif point.start < last.start or (point.start == last.start and point.time <= last.time):
            return None  # late, or the same again
        assert own is not None
        own[key] = _Last(point.start, point.time, point.total, array("Q", point.counts))
        if last is None:
            age = (point.time - point.start) / _NANO
            if age <= self._clock() - self._since + LATE_START:
                return point.total, point.counts
            if key[0] == names.METRIC_CALLS:
                self._told_until.setdefault(rank, point.time)  # the next points cover only what comes after this one
            return None
        is_new = point.start > last.start or point.total < last.total or len(point.counts) != len(last.counts)
        if is_new:
            return point.total, point.counts
        return point.total - last.total, tuple(
            max(0, now - then) for now, then in zip(point.counts, last.counts, strict=True)
        )

    def _series(self, key: Key) -> Series | None:
        found = self.series.get(key)
        if found is None:
            usage = self._usage
            if len(self.series) >= MAX_SERIES:
                key = OTHER
            if key in self.series:
                return self.series[key]
            if not usage.has_room(SERIES_BYTES):
                usage.refused["numbers"] += 1
                return None
            usage.series += 1
            found = self.series[key] = Series()
        return found


class KeyReader:
    """Caches series by the encoded attributes of a point, because monitors send the same ones again and again."""

    def __init__(self, budget: CacheBudget) -> None:
        self._known: Cache[tuple[bytes, ...], Labels] = Cache(
            budget, lambda parts, _: 1_024 + sum(map(len, parts)) + 40 * len(parts)
        )

    def read(self, attributes: tuple[bytes, ...]) -> Labels:
        """The series.

        Raises:
            ValueError: the attributes cannot be decoded, or are too many.
        """
        known = self._known.get(attributes)
        if known is None:
            known = self._known.put(attributes, _read_labels(attributes))
        return known


def _read_labels(attributes: tuple[bytes, ...]) -> Labels:
    if len(attributes) > _ATTRIBUTES or sum(map(len, attributes)) > 16 * MAX_GROUP_NAME:
        raise ValueError("a metric has too many attributes")
    texts: dict[str, str] = {}
    size = 0
    try:
        for data in attributes:
            item = KeyValue.FromString(data)
            if item.key == names.GROUP_SIZE:
                size = max(0, item.value.int_value)
            else:
                texts[item.key] = item.value.string_value
    except DecodeError as error:
        raise ValueError("the attributes of a metric cannot be decoded") from error
    text = texts.get
    key = Key(
        text(names.OPERATION, "")[:MAX_OPERATION],
        text(names.GROUP_DESCRIPTION, "")[:MAX_GROUP_NAME],
        size,
        text(names.BACKEND, "")[:MAX_OPERATION],
        text(names.DTYPE_CLASS, "")[:MAX_OPERATION],
        text(names.SIZE_CLASS, "")[:MAX_OPERATION],
    )
    return Labels(key, (text(names.ERROR_TYPE) or text(names.STEP_SOURCE, ""))[:MAX_OPERATION])
