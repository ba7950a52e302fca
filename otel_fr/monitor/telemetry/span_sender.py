"""Builds and queues the spans of one rank in one run: spans of its calls, sections and steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.telemetry.activity_spans import ActivitySpans
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.span_builder import SpanBuilder, trace_id
from otel_fr.monitor.telemetry.span_sampling import SpanSampling
from otel_fr.ring import Activity, RingReader


class SpanSender:
    """
    Args:
        ratio: share of the traces whose spans are sent; None: all.
        exporter: takes the spans, if it wants any.
    """

    def __init__(
        self, identity: RankIdentity, resource: Resource, reader: RingReader, ratio: float | None, exporter: Exporter
    ) -> None:
        run, rank, offset, suffix = identity.run_id, identity.rank, reader.wall_offset_ns, identity.name_suffix
        self._exporter = exporter
        self._resource = resource
        self._builder = SpanBuilder(run, rank, offset, suffix)
        all_or_none = ratio is None or ratio >= 1
        self._sampling = None if all_or_none else SpanSampling(ratio or 0.0, lambda record: trace_id(run, rank, record))
        self._activity = ActivitySpans(run, rank, offset, reader.pid, suffix)

    def select(self, items: list[Tracked]) -> list[Tracked]:
        """Return the calls whose spans are sent."""
        return items if self._sampling is None else self._sampling.select(items)

    def note_incident(self, trace: bytes, in_flight: Iterable[int]) -> None:
        """Send a new incident's spans that are not in the sample. ``trace``: trace id of its collective, or empty."""
        if self._sampling is not None:
            self.send(self._sampling.note_incident(trace, list(in_flight)))

    def note_activity(self, current: Collection[Activity], ended: Collection[Activity]) -> None:
        """Note the sections and steps in which calls are made from now on."""
        self._activity.note(current, ended)

    def send(self, items: list[Tracked], rank_ended_ns: int | None = None, clean: bool = False) -> None:
        """Queue the spans of calls."""
        if not self._exporter.wants_spans:
            return
        size, at = self._exporter.batch_size, self._activity.at
        for start in range(0, len(items), size):
            part = items[start : start + size]
            spans = [
                self._builder.encode(item.record, rank_ended_ns, clean, at(item.record.issued_ns), item.device)
                for item in part
            ]
            self._exporter.put_spans(len(spans), b"".join(spans), self._resource)

    def send_activity(self, items: Collection[Activity], rank_ended_ns: int | None = None, clean: bool = False) -> None:
        """Queue the spans of sections and steps."""
        if not self._exporter.wants_spans:
            return
        sampling, traces = self._sampling, self._activity
        chosen = [
            one
            for one in items
            if sampling is None or one.is_failed or rank_ended_ns or sampling.has(traces.trace_of(one))
        ]
        size = self._exporter.batch_size
        for start in range(0, len(chosen), size):
            spans = [traces.encode(item, rank_ended_ns, clean) for item in chosen[start : start + size]]
            self._exporter.put_spans(len(spans), b"".join(spans), self._resource)
