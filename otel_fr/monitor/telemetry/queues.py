"""Bounded queues of spans, reports and metrics that wait to be sent."""

from __future__ import annotations

import threading
import zlib
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr.config import SpanBatching

MAX_SPAN_BYTES = 8 << 20
"""Most bytes of queued spans, counted as stored. A backlog is compressed to about a tenth."""
MAX_BATCH_BYTES = 3 << 20
"""Most bytes of one request: by default, gRPC servers reject more than 4 MiB."""
MAX_REPORTS = 256
MAX_REPORT_BYTES = 8 << 20
MAX_METRICS = 4
"""How many requests of metrics may wait: one for each of the process's latest runs."""


@dataclass(slots=True)
class QueuedReport:
    """A rank report that waits to be sent. ``progress``: True if a later report supersedes it."""

    record: LogRecord
    size: int
    progress: bool
    resource: Resource
    tries: int = 0


class _Chunk(NamedTuple):
    """A serialised `ScopeSpans` without its scope; ``size`` in bytes before compression."""

    spans: int
    size: int
    data: bytes
    compressed: bool
    resource: Resource


class SpanQueue:
    """Serialised spans. When full, the oldest are dropped. Thread safe.

    Attributes:
        batching: bounds of the queue and of a batch.
        dropped: number of dropped spans.
    """

    def __init__(self, batching: SpanBatching | None = None) -> None:
        self.batching = batching or SpanBatching()
        self._lock = threading.Lock()
        self._chunks: deque[_Chunk] = deque()
        self._spans = 0
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return self._spans

    def put(self, count: int, data: bytes, resource: Resource) -> bool:
        """Append a serialised `ScopeSpans` of ``count`` spans without a scope. Return True if the sending thread must
        be woken."""
        batching = self.batching
        backlog = self._spans >= batching.batch_size
        chunk = _Chunk(count, len(data), zlib.compress(data, 1) if backlog else data, backlog, resource)
        with self._lock:
            was_empty = not self._chunks
            self._chunks.append(chunk)
            self._spans += count
            self._bytes += len(chunk.data)
            while (self._spans > batching.queue_size or self._bytes > MAX_SPAN_BYTES) and self._chunks:
                self.dropped += self._pop().spans
            return was_empty or self._spans >= batching.batch_size

    def take(self) -> tuple[int, list[bytes], Resource]:
        """Remove the oldest spans, at most a batch. Return their number, the data, and the resource that they share."""
        count, size, most = 0, 0, self.batching.batch_size
        chunks: list[_Chunk] = []
        with self._lock:
            while self._chunks:
                first = self._chunks[0]
                if chunks and (count + first.spans > most or size + first.size > MAX_BATCH_BYTES):
                    break
                if chunks and first.resource is not chunks[0].resource:
                    break
                chunks.append(self._pop())
                count, size = count + first.spans, size + first.size
        data = [zlib.decompress(chunk.data) if chunk.compressed else chunk.data for chunk in chunks]
        return count, data, chunks[0].resource if chunks else Resource()

    def _pop(self) -> _Chunk:
        chunk = self._chunks.popleft()
        self._spans -= chunk.spans
        self._bytes -= len(chunk.data)
        return chunk


class ReportQueue:
    """Rank reports. When full, superseded progress reports are dropped first, then the oldest. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[QueuedReport] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._items)

    def put(self, report: QueuedReport) -> None:
        with self._lock:
            self._items.append(report)
            self._bytes += report.size
            self._shrink()

    def put_back(self, reports: list[QueuedReport]) -> None:
        """Queue reports again, before all others, because they could not be sent."""
        with self._lock:
            self._items.extendleft(reversed(reports))
            self._bytes += sum(report.size for report in reports)
            self._shrink()

    @property
    def can_wait(self) -> bool:
        """True if the queue contains only progress reports."""
        with self._lock:
            return all(item.progress for item in self._items)

    def take(self) -> list[QueuedReport]:
        """Remove and return the oldest reports, as many as fit into one request."""
        taken: list[QueuedReport] = []
        size = 0
        with self._lock:
            while self._items and (not taken or size + self._items[0].size <= MAX_BATCH_BYTES):
                report = self._items.popleft()
                size += report.size
                self._bytes -= report.size
                taken.append(report)
        return taken

    def _shrink(self) -> None:
        while len(self._items) > 1 and (len(self._items) > MAX_REPORTS or self._bytes > MAX_REPORT_BYTES):
            last = len(self._items) - 1
            victim = next((i for i, item in enumerate(self._items) if item.progress and i < last), 0)
            self._bytes -= self._items[victim].size
            del self._items[victim]
            self.dropped += 1


class MetricsQueue:
    """Requests of metrics. A new request replaces a waiting one with the same resource, because metrics are cumulative.
    Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[int, tuple[Resource, ExportMetricsServiceRequest]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, resource: Resource, request: ExportMetricsServiceRequest) -> None:
        with self._lock:
            self._items.pop(id(resource), None)
            self._items[id(resource)] = resource, request
            while len(self._items) > MAX_METRICS:
                del self._items[next(iter(self._items))]

    def take(self) -> tuple[Resource, ExportMetricsServiceRequest] | None:
        """Remove and return the oldest request, or None."""
        with self._lock:
            return self._items.pop(next(iter(self._items))) if self._items else None

    def put_back(self, resource: Resource, request: ExportMetricsServiceRequest) -> None:
        """Queue a request again, because it could not be sent, unless a newer one with the same resource waits."""
        with self._lock:
            if len(self._items) < MAX_METRICS:
                self._items.setdefault(id(resource), (resource, request))

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
