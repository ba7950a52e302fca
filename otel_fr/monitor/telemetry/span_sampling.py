"""Which calls' spans are sent where ``OTEL_TRACES_SAMPLER`` asks for a share of the traces.

The decision is made as by OpenTelemetry's `TraceIdRatioBased`, which depends on the trace id alone. All ranks compute
the same trace id of a collective, so its spans are sent by all of them or by none. Besides, whatever the ratio, each
rank sends what somebody will look for: calls that failed, calls that took longer than nearly all others with the same
sizes, and calls of an incident; and what verdicts need and nothing else shows: the creation of process groups.
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
"""Calls of a kind from which it is known what is slow: two or three of them are above the quantile."""
MAX_SEEN = 8_192
"""Calls of a kind after which the older ones count half: what is usual changes while a job runs."""
RECOMPUTED_EVERY = 64
"""Calls of a kind after which the quantile is computed again."""
MAX_KINDS = 512
"""Pairs of a signature and a group whose durations are known; each takes some kilobytes at most."""
KEPT_CALLS = 64
"""Calls that ended last, and whose spans were not sent: an incident sends them."""
MAX_MARKED = 4_096
"""Calls in flight when an incident opened."""
MAX_TRACES = 256
"""Traces of incidents."""

_PARTS = 8
"""Buckets of a histogram for each factor of 2: a bucket is at most an eighth as wide as its durations are long."""


class _Durations:
    """A histogram of the durations of one kind of calls, and from which bucket on they are slow."""

    __slots__ = ("_counts", "_seen", "_slow_above", "of")

    def __init__(self, signature: SignatureDef, group: GroupDef) -> None:
        self.of = signature, group
        self._counts: dict[int, int] = {}
        self._seen = 0
        self._slow_above: int | None = None

    def is_slow(self, nanoseconds: int) -> bool:
        """Whether it took longer than `QUANTILE` of those before; then count it."""
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
        trace_of: the trace of a call of this rank, 16 bytes.
    """

    def __init__(self, ratio: float, trace_of: Callable[[Record], bytes]) -> None:
        self._bound = TraceIdRatioBased(ratio).bound
        self._trace_of = trace_of
        self._durations: OrderedDict[tuple[int, int], _Durations] = OrderedDict()
        self._latest: deque[Tracked] = deque(maxlen=KEPT_CALLS)
        self._marked: set[int] = set()
        self._traces: OrderedDict[bytes, None] = OrderedDict()

    def has(self, trace: bytes) -> bool:
        """The trace is in the sample, or belongs to an incident."""
        # As `TraceIdRatioBased.should_sample`, which besides asks for a parent and takes 20 times as long.
        return int.from_bytes(trace[8:], "big") < self._bound or trace in self._traces

    def select(self, items: Iterable[Tracked]) -> list[Tracked]:
        """Of calls that have ended, those whose spans are sent."""
        found = []
        for item in items:
            if self._wants(item.record):
                found.append(item)
            else:
                self._latest.append(item)
        return found

    def note_incident(self, trace: bytes, in_flight: Sequence[int]) -> list[Tracked]:
        """An incident has opened: calls in flight, and calls of its trace, are sent from now on.

        Args:
            trace: of the incident's collective; empty: there is none.
            in_flight: their record ids.

        Returns:
            the calls that ended last, which must be sent now.
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
        is_slow = self._is_slow(record)  # first of all: each call is counted
        if record.record_id in self._marked:
            self._marked.discard(record.record_id)
            return True
        is_kept = record.kind == KIND_GROUP or record.state is RecordState.FAILED
        return is_slow or is_kept or self.has(self._trace_of(record))

    def _is_slow(self, record: Record) -> bool:
        if record.ended_ns is None or record.state is not RecordState.COMPLETED:
            return False
        if is_followed(record.signature.backend):
            return False  # its end was seen some time after it
        # By object identity, as the span builder's templates: the entry holds the objects.
        key = id(record.signature), id(record.group)
        known = self._durations.get(key)
        if known is None:
            known = self._durations[key] = _Durations(record.signature, record.group)
            if len(self._durations) > MAX_KINDS:
                self._durations.popitem(last=False)
        else:
            self._durations.move_to_end(key)
        return known.is_slow(max(0, record.ended_ns - record.issued_ns))
