"""Selects the calls whose spans are sent if ``OTEL_TRACES_SAMPLER`` requests a share of the traces.

The decision is the same as in OpenTelemetry's `TraceIdRatioBased`, and depends only on the trace id. All ranks compute
the same trace id for a collective, so either all of them send its spans, or none does. Whatever the ratio, each rank
also sends the calls that users will look for: calls that failed, calls that took longer than nearly all others with the
same sizes, and calls of an incident. It also sends the creation of process groups, which verdicts need and nothing else
shows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.ring import KIND_GROUP, GroupDef, Record, RecordState, SignatureDef
from otel_fr.torch_recorder import is_followed

QUANTILE = 0.99
"""Share of the calls of a kind that are not slow."""
MIN_SEEN = 256
"""How many calls of a kind are needed to decide which are slow. Two or three of them are above the quantile."""
MAX_SEEN = 8_192
"""After this many calls of a kind, the older ones count half: usual durations change while a job runs."""
RECOMPUTED_EVERY = 64
"""The quantile is computed again after this many calls of a kind."""
MAX_KINDS = 512
"""How many pairs of signature and group have a histogram. Each takes some kilobytes at most."""
KEPT_CALLS = 64
"""How many of the latest calls without a sent span are kept: if an incident opens, their spans are sent."""
MAX_MARKED = 4_096
"""How many calls that were in flight when an incident opened are remembered."""
MAX_TRACES = 256
"""How many traces of incidents are remembered."""

_PARTS = 8
"""Buckets of a histogram for each factor of 2. A bucket's width is at most an eighth of its durations."""


class _Durations:
    """A histogram of the durations of one kind of calls, and the bucket above which calls are slow."""

    __slots__ = ("_counts", "_seen", "_slow_above", "of")

    def __init__(self, signature: SignatureDef, group: GroupDef) -> None:
        self.of = signature, group
        self._counts: dict[int, int] = {}
        self._seen = 0
        self._slow_above: int | None = None

    def is_slow(self, nanoseconds: int) -> bool:
        """Return True if the call took longer than `QUANTILE` of the earlier calls, and count it."""
        exponent = nanoseconds.bit_length()
        bucket = exponent * _PARTS
        if exponent > 3:
            bucket += (nanoseconds >> (exponent - 4)) & (_PARTS - 1)
        limit = self._slow_above
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._seen += 1
        if self._seen >= MIN_SEEN and self._seen % RECOMPUTED_EVERY == 0:
            self._recompute()
        return limit is not None and bucket > limit

    def _recompute(self) -> None:
        if self._seen >= MAX_SEEN:
            self._counts = {bucket: count // 2 for bucket, count in self._counts.items() if count > 1}
            self._seen = sum(self._counts.values())
        above = self._seen * (1.0 - QUANTILE)
        for bucket in sorted(self._counts, reverse=True):
            above -= self._counts[bucket]
            if above < 0:
                self._slow_above = bucket
                return


class SpanSampling:
    """Selects the calls whose spans are sent.

    Args:
        ratio: share of the traces, 0 to 1.
        trace_of: returns the trace id of this rank's call, 16 bytes.
    """

    def __init__(self, ratio: float, trace_of: Callable[[Record], bytes]) -> None:
        self._bound = TraceIdRatioBased(ratio).bound
        self._trace_of = trace_of
        self._durations: OrderedDict[tuple[int, int], _Durations] = OrderedDict()
        self._latest: deque[Tracked] = deque(maxlen=KEPT_CALLS)
        self._marked: set[int] = set()
        self._traces: OrderedDict[bytes, None] = OrderedDict()

    def has(self, trace: bytes) -> bool:
        """Return True if the trace is in the sample or belongs to an incident."""
        # The same as `TraceIdRatioBased.should_sample`, which also looks for a parent and takes 20 times as long.
        return int.from_bytes(trace[8:], "big") < self._bound or trace in self._traces

    def select(self, items: Iterable[Tracked]) -> list[Tracked]:
        """Return the calls whose spans are sent. ``items``: calls that have ended."""
        found = []
        for item in items:
            if self._wants(item.record):
                found.append(item)
            else:
                self._latest.append(item)
        return found

    def note_incident(self, trace: bytes, in_flight: Sequence[int]) -> list[Tracked]:
        """Note that an incident has opened: send its trace's calls, and the present calls in flight once they end.

        Args:
            trace: trace id of the incident's collective; empty: there is none.
            in_flight: record ids of the calls in flight.

        Returns:
            The calls that ended last, whose spans must be sent now.
        """
        if trace:
            self._traces[trace] = None
            if len(self._traces) > MAX_TRACES:
                self._traces.popitem(last=False)
        if len(self._marked) < MAX_MARKED:
            self._marked.update(in_flight[:MAX_MARKED])
        found = list(self._latest)
        self._latest.clear()
        return found

    def _wants(self, record: Record) -> bool:
        is_slow = self._is_slow(record)  # must come first, because it counts each call
        if record.record_id in self._marked:
            self._marked.discard(record.record_id)
            return True
        is_kept = record.kind == KIND_GROUP or record.state is RecordState.FAILED
        return is_slow or is_kept or self.has(self._trace_of(record))

    def _is_slow(self, record: Record) -> bool:
        if record.ended_ns is None or record.state is not RecordState.COMPLETED:
            return False
        if is_followed(record.signature.backend):
            return False  # its end was seen late, so its duration is inexact
        # By object identity, like the span builder's templates. The entry holds the objects.
        key = id(record.signature), id(record.group)
        known = self._durations.get(key)
        if known is None:
            known = self._durations[key] = _Durations(record.signature, record.group)
            if len(self._durations) > MAX_KINDS:
                self._durations.popitem(last=False)
        else:
            self._durations.move_to_end(key)
        return known.is_slow(max(0, record.ended_ns - record.issued_ns))
