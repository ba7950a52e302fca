"""Reports the calls in a range of sequence numbers to a collector that has seen ranks disagree about them."""

from __future__ import annotations

from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.ring.fingerprints import of_range
from otel_fr.monitor.telemetry.report_builder import reported_call
from otel_fr.rank_report import MAX_CALLS, MAX_FETCHED, ReportedRange
from otel_fr.ring import KIND_COLLECTIVE, RingReader

MAX_SCANNED = 100_000
"""How many of the newest records are examined. This takes up to a second, and a ring may hold millions."""
PARTS = 32
"""The number of positions at which the fingerprint of a range is reported. Three answers narrow 32,000 calls to one."""


def reported_range(reader: RingReader, group: str, first: int, last: int, now_ns: int) -> ReportedRange:
    """Return the rank's collectives in a group, as far as the ring still has them.

    Args:
        first, last: sequence numbers, both included.
        now_ns: the rank's monotonic clock.
    """
    found, oldest = [], None
    of_run = reader.first_record
    since = max(of_run, reader.head - MAX_SCANNED)
    begin = None
    for record in reader.records(since):
        begin = record.record_id if begin is None else begin
        if record.kind != KIND_COLLECTIVE or record.group.id != group:
            continue
        oldest = record.coll_seq if oldest is None else min(oldest, record.coll_seq)
        if first <= record.coll_seq <= last:
            found.append(record)
    if begin != of_run and (oldest is None or oldest >= first):
        # Earlier calls were overwritten, and perhaps also some calls in the batch of the oldest one.
        first = last + 1 if oldest is None else oldest + 1
        found = [record for record in found if record.coll_seq >= first]
    found.sort(key=lambda record: (record.coll_seq, record.record_id))
    if last - first < MAX_FETCHED and len(found) <= MAX_CALLS:
        reported = tuple([reported_call(Tracked(record, None), now_ns) for record in found])
        return ReportedRange(group, first, last, calls=reported)
    numbers = [(record.coll_seq, record.signature) for record in found]
    return ReportedRange(group, first, last, of_range(numbers, first, last, PARTS))
