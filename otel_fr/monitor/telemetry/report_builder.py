"""Converts records of the ring to parts of a rank report (`otel_fr.rank_report`), and a report to its event."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice

from msgspec import structs
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from otel_fr import rank_report
from otel_fr import semconv as names
from otel_fr.dumps.contents import stream_of
from otel_fr.dumps.device_times import of_followed
from otel_fr.identity import encode_ranks
from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.rank_identity import RankIdentity
from otel_fr.monitor.ring.tail import Reached
from otel_fr.monitor.rules import seconds_between
from otel_fr.monitor.telemetry.span_builder import error_type
from otel_fr.otlp_attributes import attributes
from otel_fr.rank_report import RankReport, ReportedCall, ReportedGroup
from otel_fr.ring import STATE_TEXT, GroupDef, GroupProgress, RecordState, RingReader
from otel_fr.stacks import own_thread
from otel_fr.torch_recorder import is_followed

MAX_DESTROYED = 64
"""How many destroyed groups are still reported."""
_INFO = (SeverityNumber.SEVERITY_NUMBER_INFO, "INFO")
_WARN = (SeverityNumber.SEVERITY_NUMBER_WARN, "WARN")
_ERROR = (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR")
_SEVERITY = {
    **dict.fromkeys((names.EVENT_STALLED, names.EVENT_IDLE, names.EVENT_OVERDUE), _WARN),
    **dict.fromkeys((names.EVENT_PEER_FAILED, names.EVENT_CALLS_ENDED), _WARN),
    **dict.fromkeys((names.EVENT_DUMP_FAILED, names.EVENT_EXCEPTION), _ERROR),
}


def reported_call(item: Tracked, now_ns: int) -> ReportedCall:
    """Return a call for the report. ``now_ns``: the rank's monotonic clock."""
    record, signature = item.record, item.record.signature
    new = signature.new_group
    wait_s, device = None, item.device or of_followed(record)
    ended_ns = None if is_followed(signature.backend) else record.ended_ns  # PyTorch sees ends much later
    if not record.is_posted and record.waited_ns is not None and record.state is RecordState.IN_FLIGHT:
        wait_s = seconds_between(record.waited_ns, now_ns)
    return ReportedCall(
        group=record.group.id,
        stream=stream_of(record),
        sequence=record.sequence_id,
        op_id=record.op_id,
        record=record.record_id,
        pair_index=record.pair_index,
        operation=signature.operation,
        backend=signature.backend,
        input_sizes=signature.input_sizes,
        input_dtypes=signature.input_dtypes,
        output_sizes=signature.output_sizes,
        output_dtypes=signature.output_dtypes,
        input_splits=signature.input_splits,
        output_splits=signature.output_splits,
        reduce_op=signature.reduce_op,
        root=signature.root,
        peer=signature.peer,
        tag=signature.tag,
        state=STATE_TEXT[record.state],
        timeout_ms=record.timeout_ms,
        age_s=seconds_between(record.issued_ns, now_ns),
        site=record.site.text,
        any_source=signature.any_source,
        is_posted=record.is_posted,
        is_queued=device is not None and device.is_queued,
        wait_s=wait_s,
        duration_s=None if ended_ns is None else seconds_between(record.issued_ns, ended_ns),
        gap_s=None if item.gap_s is None else round(item.gap_s, 6),
        error=error_type(record),
        thread=own_thread(record.thread),
        new_name=None if new is None else new.name,
        new_description="" if new is None else new.description,
        new_ranks="" if new is None else encode_ranks(new.ranks),
        awaits_all=new is not None and new.awaits_all,
        run_s=None if item.device is None else item.device.duration_s,
    )


def reported_group(row: GroupProgress, now_ns: int, is_destroyed: bool = False) -> ReportedGroup:
    """Return a group for the report. ``now_ns``: the rank's monotonic clock."""
    moved_ns = max(row.last_issue_ns, row.last_end_ns)
    return ReportedGroup(
        id=row.group.id,
        name=row.group.name,
        description=row.group.description,
        ranks=encode_ranks(row.group.ranks),
        backend=row.group.backend,
        enqueued=row.enqueued,
        completed=row.completed,
        p2p_enqueued=row.p2p_enqueued,
        calls_enqueued=row.issued,
        calls_ended=row.ended,
        is_destroyed=is_destroyed,
        idle_s=seconds_between(moved_ns, now_ns) if moved_ns else None,
    )


class GroupTracker:
    """The progress of every live group, and of recently destroyed groups.

    A group that disappears is reported as it was last seen, until all its records have been read (`settle`).

    Args:
        session: number of the run.
        reached: by group id, the progress shown by the records that were read.
    """

    def __init__(self, reader: RingReader, session: int, reached: Mapping[str, Reached]) -> None:
        self._reader = reader
        self._session = session
        self._reached = reached
        self._live: dict[str, GroupProgress] = {}
        self._leaving: dict[str, GroupProgress] = {}
        self._destroyed: dict[str, GroupProgress] = {}
        self._is_over = False

    def end(self) -> None:
        """End the run: all its groups were destroyed, and the progress table has the groups of another run."""
        self._is_over = True
        self.refresh()
        self.settle(self.leaving())

    def refresh(self) -> list[GroupProgress]:
        """Read the progress table again. Return the live groups."""
        rows = [] if self._is_over else self._reader.groups()
        if rows and self._reader.meta.get("session", 0) != self._session:
            return list(self._live.values())  # the table has groups of the next run, or will have them soon
        live = {row.group.id: row for row in rows}
        for id_, row in self._live.items():
            if id_ not in live:
                self._leaving[id_] = row
        for id_ in live:
            self._leaving.pop(id_, None)
            self._destroyed.pop(id_, None)
        # Add groups that have records but were created and destroyed since the table was last read. They can be
        # recognised only if every live group has a row.
        for id_, seen in self._reached.items() if not self._reader.untracked else ():
            if id_ not in live and id_ not in self._leaving and id_ not in self._destroyed:
                self._leaving[id_] = GroupProgress(seen.group, seen.enqueued, seen.completed, 0, 0, 0, 0, 0)
        for id_ in list(self._leaving)[: max(0, len(self._leaving) - MAX_DESTROYED)]:
            del self._leaving[id_]
        self._live = live
        return rows

    def leaving(self) -> tuple[str, ...]:
        """Return the groups that have disappeared, but whose last calls may not have been read yet."""
        return tuple(self._leaving)

    def settle(self, ids: Iterable[str]) -> list[str]:
        """Mark groups as destroyed, because all their records have been read. Return the groups that this evicts."""
        for id_ in ids:
            row, seen = self._leaving.pop(id_, None), self._reached.get(id_)
            if row is None:
                continue
            if seen is not None:
                enqueued, completed = max(row.enqueued, seen.enqueued), max(row.completed, seen.completed)
                row = replace(row, enqueued=enqueued, completed=completed)
            self._destroyed[id_] = row
        evicted = list(self._destroyed)[: max(0, len(self._destroyed) - MAX_DESTROYED)]
        for id_ in evicted:
            del self._destroyed[id_]
        return evicted

    def report(
        self,
        now_ns: int,
        unended: Mapping[str, int] | None = None,
        fingerprints: Mapping[str, tuple[int, ...]] | None = None,
    ) -> tuple[ReportedGroup, ...]:
        """Return all groups as they are now, the live groups first.

        Args:
            unended: by group id, number of calls that the ring counts as ended, but PyTorch's recorder does not.
            fingerprints: fingerprints by group id (`otel_fr.monitor.ring.fingerprints`).
        """
        rows = (*self.refresh(), *self._leaving.values())
        found = [reported_group(self._by_devices(row, unended or {}), now_ns) for row in rows]
        found += [reported_group(row, now_ns, is_destroyed=True) for row in self._destroyed.values()]
        known = fingerprints or {}
        return tuple([structs.replace(one, fingerprint=known[one.id]) if one.id in known else one for one in found])

    def _by_devices(self, row: GroupProgress, unended: Mapping[str, int]) -> GroupProgress:
        """Return the progress as PyTorch's recorder shows it, if the ring does not know when calls end."""
        seen, still = self._reached.get(row.group.id), unended.get(row.group.id, 0)
        completed = row.completed if seen is None else max(row.completed, seen.completed)
        if completed == row.completed and not still:
            return row
        return replace(row, completed=completed, ended=max(0, row.ended - still))

    @property
    def live(self) -> tuple[GroupDef, ...]:
        """The live groups when the table was last read."""
        return tuple([row.group for row in self._live.values()])

    @property
    def backends(self) -> set[str]:
        """The backends of live groups and of recently destroyed groups."""
        rows = (*self._live.values(), *self._leaving.values(), *self._destroyed.values())
        return {row.group.backend for row in rows}


def in_flight(
    tracked: Mapping[int, Tracked], uncertain: Mapping[str, Tracked], undecided: Iterable[Tracked], now_ns: int
) -> tuple[tuple[ReportedCall, ...], int]:
    """Return the oldest calls that are or may be in flight, and how many more there are.

    Args:
        tracked: calls in flight by record id.
        uncertain: by group id, the newest call that may be in flight.
        undecided: other calls that may be in flight. Calls of other ranks are compared with them.
    """
    limit = rank_report.MAX_CALLS
    newest = {item.record.record_id for item in uncertain.values()}
    others = [item for item in undecided if item.record.record_id not in newest]
    first = [reported_call(item, now_ns) for item in others[:limit]]
    first += [reported_call(item, now_ns) for item in islice(tracked.values(), limit)]
    first += [reported_call(item, now_ns) for item in islice(uncertain.values(), limit)]
    first.sort(key=lambda call: call.record)
    total = len(tracked) + len(uncertain) + len(others)
    return tuple(first[:limit]), total - min(total, limit)


def log_record(event: str, report: RankReport, time_ns: int) -> LogRecord:
    """Return the event as an OTLP log record. ``time_ns`` is wall time."""
    severity = _SEVERITY.get(event, _INFO)
    if event == names.EVENT_EXITED and not (report.exit is not None and report.exit.is_clean):
        severity = _ERROR
    record = _record(event, _log_attributes(event, report), time_ns, severity)
    record.body.string_value = rank_report.build(report)
    return record


def control_record(action: str, description: str) -> LogRecord:
    """Return the event with which a rank requests an action before the next start. Its time is now."""
    found = {names.WORKLOAD_ACTION: action, names.WORKLOAD_DESCRIPTION: description}
    return _record(names.EVENT_WORKLOAD_CONTROL, found, time.time_ns())


def quorum_record(identity: RankIdentity) -> LogRecord:
    """Return the event of a rank whose replica takes part in a new quorum from now on."""
    quorum = {names.QUORUM_ID: identity.quorum, names.QUORUM_REPLICAS: identity.replicas}
    return _record(names.EVENT_QUORUM, {**quorum, names.REPLICA_ID: identity.replica}, time.time_ns())


def _record(
    event: str,
    found: Mapping[str, str | int | None],
    time_ns: int,
    severity: tuple[SeverityNumber.ValueType, str] = _INFO,
) -> LogRecord:
    number, text = severity
    record = LogRecord(
        time_unix_nano=time_ns,
        observed_time_unix_nano=time_ns,
        severity_number=number,
        severity_text=text,
        event_name=event,
    )
    record.attributes.extend(attributes(found))
    return record


def _log_attributes(event: str, report: RankReport) -> dict[str, str | int | None]:
    """Return attributes by which backends that do not read rank reports can search."""
    found: dict[str, str | int | None] = {}
    if event in (names.EVENT_DUMP_WRITTEN, names.EVENT_DUMP_FAILED) and report.file:
        found[names.FILE_PATH] = report.file
    if event == names.EVENT_EXITED and report.exit is not None and report.exit.is_known:
        found[names.EXIT_CODE] = report.exit.code
        found[names.EXIT_SIGNAL] = report.exit.signal
    exception = report.exception
    if event == names.EVENT_EXCEPTION and exception is None and report.thread_exceptions:
        exception = report.thread_exceptions[-1]
    if event in (names.EVENT_EXITED, names.EVENT_EXCEPTION) and exception is not None:
        found[names.EXCEPTION_TYPE] = exception.type or None
        found[names.EXCEPTION_MESSAGE] = exception.message or None
        found[names.EXCEPTION_STACKTRACE] = exception.stack or None
        found[names.THREAD_NAME] = exception.thread or None
    return found
