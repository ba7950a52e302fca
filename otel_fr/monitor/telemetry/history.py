"""Derives facts from a rank's newest calls: how many calls each step has, and which messages the rank left out."""

from __future__ import annotations

from typing import Any

from otel_fr.dumps.decisions import reported_decisions
from otel_fr.dumps.device_times import by_device
from otel_fr.dumps.message_patterns import message_patterns, own_calls
from otel_fr.dumps.step_calls import MAX_RECORDS, step_calls, steps_of
from otel_fr.monitor.nccl.device_calls import DeviceCalls
from otel_fr.monitor.ring.tail import Tail
from otel_fr.rank_report import ReportedPattern
from otel_fr.ring import Decided, RingReader


class History:
    """The facts from the calls of one run. Calls are read again once there are new ones, or some have ended."""

    def __init__(self, reader: RingReader, tail: Tail, devices: DeviceCalls) -> None:
        self._reader = reader
        self._tail = tail
        self._devices = devices
        self._of: tuple[int, ...] = ()
        self._noticed: list[Decided] = []
        self._patterns: tuple[ReportedPattern, ...] = ()

    def reported(self, rank: int, *, in_full: bool) -> dict[str, Any]:
        """Return the fields ``patterns`` and ``decisions`` of a rank report. Only a full report has decisions."""
        reader, activity = self._reader, self._reader.activity
        now = reader.head, self._tail.ended, -1 if activity is None else activity.ended_count
        if now != self._of:
            seen = self._devices.seen()
            newest = reader.records(max(reader.head - MAX_RECORDS, reader.first_record))
            records = [by_device(record, seen.get(record.record_id)) for record in newest]
            self._noticed = step_calls(records, steps_of(reader))
            self._patterns = message_patterns(list(own_calls(records, rank)))
            self._of = now
        decisions = reported_decisions(reader.decisions, self._noticed) if in_full else ()
        return {"decisions": decisions, "patterns": self._patterns}
