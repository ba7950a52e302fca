"""A rank in one run: reads its calls, and sends their spans and metrics."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from otel_fr.config import Config
from otel_fr.dumps.nccl_inspector import DeviceCall
from otel_fr.monitor.nccl.device_calls import DeviceCalls, Tracked
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.ring.tail import Tail
from otel_fr.monitor.telemetry.export import Exporter
from otel_fr.monitor.telemetry.history import History
from otel_fr.monitor.telemetry.metrics import RankMetrics
from otel_fr.monitor.telemetry.report_builder import GroupTracker
from otel_fr.monitor.telemetry.span_sender import SpanSender
from otel_fr.monitor.witness import Witness
from otel_fr.ring import Activity, Record, RecordState, RingReader


class RankRun:
    """One run that the rank's process is in, or was in before.

    Args:
        devices: what PyTorch's recorder has shown.
        sent_until_ns: an earlier monitor has sent everything that ended before this time; 0: there was none.

    Attributes:
        identity, resource, witness: describe the rank in this run.
        tail, history, groups: what was read about its calls.
    """

    def __init__(
        self,
        identity: RankIdentity,
        reader: RingReader,
        config: Config,
        devices: DeviceCalls,
        exporter: Exporter,
        sent_until_ns: int,
    ) -> None:
        self._reader = reader
        self._ratio = config.sampling_ratio
        self._devices = devices
        self._exporter = exporter
        self._sent_until_ns = sent_until_ns
        self._since_ns = time.monotonic_ns()
        self.tail = Tail(reader, identity.first_record, devices)
        self.history = History(reader, self.tail, devices)
        self.groups = GroupTracker(reader, identity.session, self.tail.reached)
        run, rank, offset = identity.run_id, identity.rank, reader.wall_offset_ns
        self._metrics = RankMetrics(run, rank, offset, wants_exemplars=exporter.wants_spans)
        self.describe(identity)

    def describe(self, identity: RankIdentity) -> None:
        """Report with this identity from now on."""
        self.identity = identity
        self.resource = identity.resource()
        self.witness = Witness(identity.rank, identity.world_size or 1)
        self._spans = SpanSender(identity, self.resource, self._reader, self._ratio, self._exporter)

    # ---- what the ring shows

    def read(self, everything: bool, until: int) -> bool:
        """Read records, and queue the spans of the calls that have ended. Takes the arguments of `Tail.poll`.

        Returns:
            True if a call failed.
        """
        ended = self.tail.poll(everything, until)
        self._take_ended(ended)
        return any(item.record.state is RecordState.FAILED for item in ended)

    def read_last(self, following: RankIdentity) -> None:
        """Read what the process recorded in this run before it left the run and entered ``following``."""
        behind = following.session == self.identity.session + 1  # else runs in between made some of these calls
        while behind:
            self.read(True, following.first_record)
            behind = self.tail.is_behind(following.first_record)
        self._take_ended(self._devices.release())

    def _take_ended(self, items: list[Tracked]) -> None:
        """Count the calls and send their spans, except calls that an earlier monitor has sent."""
        if self._sent_until_ns:
            items = [one for one in items if (one.record.ended_ns or one.record.issued_ns) >= self._sent_until_ns]
        sent = self._spans.select(items)
        self._count(items, sent)
        self._spans.send(sent)

    def _count(self, items: list[Tracked], sent: list[Tracked]) -> None:
        """Add calls to the metrics. ``sent``: the calls whose spans are sent."""
        if self._exporter.wants_metrics:
            add = self._metrics.add
            numbers = None if sent is items else {item.record.record_id for item in sent}
            for item in items:
                add(item.record, item.device, has_span=numbers is None or item.record.record_id in numbers)

    def note_activity(self, current: Collection[Activity], ended: Collection[Activity]) -> None:
        """Note the sections and steps in which calls are made from now on. Queue the spans of the ended ones."""
        self._spans.note_activity(current, ended)
        ended = [item for item in ended if (item.ended_ns or 0) >= self._sent_until_ns]
        for item in ended:
            self._metrics.add_step(item)
        self._spans.send_activity(ended)

    # ---- where the rank is

    @property
    def moved_ns(self) -> int:
        """When a call was last enqueued or ended; before the first call, when the monitor began to follow this run."""
        return max(self.tail.moved_ns, self._since_ns)

    def in_flight(self, now_ns: int) -> Mapping[int, Tracked]:
        """Return the calls in flight by record id, oldest first.

        If the last answer of PyTorch's recorder is stale, a device's calls count as posted until the next answer,
        because they may have ended.

        Args:
            now_ns: monotonic.
        """
        found = self.tail.in_flight
        if not self._devices.is_stale(now_ns):
            return found
        return {id_: item if item.device is None else item.as_posted() for id_, item in found.items()}

    def oldest(self, now_ns: int) -> Record | None:
        """Return the call for which a thread has waited longest, or None.

        A call whose backend does not show when calls end counts as in flight until the next call of its group. Posted
        calls do not count, because no thread waits for them. Calls that destroy a group wait for no other rank, and do
        not count either.
        """
        uncertain = [item.record for item in self.tail.uncertain.values() if not item.record.is_posted]
        oldest = min(uncertain, key=lambda record: record.since_ns, default=None)
        for record in (item.record for item in self.in_flight(now_ns).values() if not item.record.destroys):
            if oldest is not None and record.issued_ns > oldest.since_ns:
                break
            if not record.is_posted and (oldest is None or record.since_ns < oldest.since_ns):
                oldest = record
        return oldest

    # ---- incidents, metrics, last spans

    def note_incident(self, trace: bytes) -> None:
        """Send a new incident's spans that are not in the sample. ``trace``: trace id of its collective, or empty."""
        self._spans.note_incident(trace, self.tail.in_flight)

    def note_device_call(self, call: DeviceCall) -> None:
        """Note that NCCL Inspector has measured a call."""
        if self._exporter.wants_metrics:
            self._metrics.add_inspected(call)

    def send_metrics(self) -> None:
        """Send the metrics as they are now."""
        if self._exporter.wants_metrics:
            request = self._metrics.request(self.resource, (item.record for item in self.tail.in_flight.values()))
            if request is not None:
                self._exporter.put_metrics(request, self.resource)

    def close_spans(self, current: Collection[Activity], now_ns: int, clean: bool) -> None:
        """Send the spans of the calls in flight and of ``current``, because the rank has ended."""
        self._spans.send(list(self.tail.in_flight.values()), now_ns, clean)
        self._spans.send_activity(current, now_ns, clean)
