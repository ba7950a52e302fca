"""The rank report: what one rank tells about itself, as docs/telemetry.md defines it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from otel_fr import semconv as names
from otel_fr.identity import encode_ranks
from otel_fr.monitor.span_builder import error_type, stream_of
from otel_fr.monitor.tail import Tracked
from otel_fr.otlp_attributes import attributes
from otel_fr.ring import STATE_TEXT, GroupProgress, RecordState, RingReader

VERSION = 1
MAX_IN_FLIGHT = 64
MAX_GONE = 64
"""Destroyed groups that are still told of."""
_MAX_ITEMS = 256
"""Sizes of one call that go into a report: equal calls differ early if they differ."""
_SEVERITY = {
    names.EVENT_STALLED: (SeverityNumber.SEVERITY_NUMBER_WARN, "WARN"),
    names.EVENT_IDLE: (SeverityNumber.SEVERITY_NUMBER_WARN, "WARN"),
    names.EVENT_DUMP_FAILED: (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR"),
    names.EVENT_EXCEPTION: (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR"),
}
_INFO = (SeverityNumber.SEVERITY_NUMBER_INFO, "INFO")
_ERROR = (SeverityNumber.SEVERITY_NUMBER_ERROR, "ERROR")


def call(item: Tracked, now_ns: int, state: str | None = None) -> dict[str, Any]:
    """CALL of docs/telemetry.md. ``now_ns``: the rank's monotonic clock."""
    record, signature = item.record, item.record.signature
    answer: dict[str, Any] = {
        "g": record.group.id,
        "k": stream_of(record),
        "seq": record.sequence_id,
        "op_id": record.op_id,
        "rec": record.record_id,
        "i": record.pair_index,
        "op": signature.operation,
        "be": signature.backend,
        "in": signature.input_sizes[:_MAX_ITEMS],
        "idt": signature.input_dtypes[:_MAX_ITEMS],
        "out": signature.output_sizes[:_MAX_ITEMS],
        "odt": signature.output_dtypes[:_MAX_ITEMS],
        "isp": signature.input_splits,
        "osp": signature.output_splits,
        "ro": signature.reduce_op,
        "root": signature.root,
        "peer": signature.peer,
        "tag": signature.tag,
        "st": state or STATE_TEXT[record.state],
        "timeout_ms": record.timeout_ms,
        "age_s": _seconds(record.issued_ns, now_ns),
        "site": record.site.text,
    }
    if signature.any_source:
        answer["any"] = True
    if record.is_posted:
        answer["posted"] = True
    elif record.waited_ns is not None and record.state is RecordState.IN_FLIGHT:
        answer["wait_s"] = _seconds(record.waited_ns, now_ns)
    if record.ended_ns is not None:
        answer["dur_s"] = _seconds(record.issued_ns, record.ended_ns)
    if item.gap_s is not None:
        answer["gap_s"] = round(item.gap_s, 6)
    error = error_type(record)
    if error is not None:
        answer["err"] = error
    return answer


def group(row: GroupProgress, now_ns: int, gone: bool = False) -> dict[str, Any]:
    """One element of ``groups``."""
    answer: dict[str, Any] = {
        "id": row.group.id,
        "name": row.group.name,
        "desc": row.group.description,
        "ranks": encode_ranks(row.group.ranks),
        "backend": row.group.backend,
        "enq": row.enqueued,
        "done": row.completed,
        "p2p": row.p2p_enqueued,
        "issued": row.issued,
        "ended": row.ended,
        "gone": gone,
    }
    moved = max(row.last_issue_ns, row.last_end_ns)
    if moved:
        answer["idle_s"] = _seconds(moved, now_ns)
    return answer


class Groups:
    """Progress of every group, and of those that were destroyed not long ago."""

    def __init__(self, reader: RingReader) -> None:
        self._reader = reader
        self._rows: dict[str, GroupProgress] = {}
        self._gone: dict[str, GroupProgress] = {}

    def look(self) -> list[GroupProgress]:
        """The live groups, now."""
        rows = self._reader.groups()
        now = {row.group.id: row for row in rows}
        for id_, row in self._rows.items():
            if id_ not in now:
                self._gone[id_] = row
        for id_ in now:
            self._gone.pop(id_, None)
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
        self._rows = now
        return rows

    def report(self, now_ns: int) -> list[dict[str, Any]]:
        live = [group(row, now_ns) for row in self.look()]
        return live + [group(row, now_ns, gone=True) for row in self._gone.values()]

    @property
    def backends(self) -> set[str]:
        return {row.group.backend for row in (*self._rows.values(), *self._gone.values())}


def in_flight(
    tracked: Mapping[int, Tracked], uncertain: Mapping[str, Tracked], now_ns: int
) -> tuple[list[dict[str, Any]], int]:
    """The oldest calls in flight, with those that may be, and how many more there are."""
    first = [call(item, now_ns) for item in islice(tracked.values(), MAX_IN_FLIGHT)]
    first += [call(item, now_ns) for item in islice(uncertain.values(), MAX_IN_FLIGHT)]
    first.sort(key=lambda one: int(one["rec"]))
    total = len(tracked) + len(uncertain)
    return first[:MAX_IN_FLIGHT], total - min(total, MAX_IN_FLIGHT)


def exception_of(found: Mapping[str, object] | None) -> dict[str, Any] | None:
    """The ring's exception with the keys of the rank report."""
    if not found:
        return None
    return {key: str(found[key]) for key in ("type", "message", "stack", "site") if found.get(key)}


def log_record(event: str, report: Mapping[str, Any], time_ns: int) -> LogRecord:
    """The event as an OTLP log record; ``time_ns`` is wall time."""
    severity, text = _SEVERITY.get(event, _INFO)
    if event == names.EVENT_EXITED and not report.get("exit", {}).get("clean"):
        severity, text = _ERROR
    record = LogRecord(
        time_unix_nano=time_ns,
        observed_time_unix_nano=time_ns,
        severity_number=severity,
        severity_text=text,
        event_name=event,
        body=AnyValue(string_value=json.dumps(report, separators=(",", ":"))),
    )
    record.attributes.extend(attributes(_attributes(event, report)))
    return record


def _attributes(event: str, report: Mapping[str, Any]) -> dict[str, str | int]:
    """What a backend that knows nothing of rank reports should still be able to search for."""
    found: dict[str, str | int] = {}
    if event in (names.EVENT_DUMP_WRITTEN, names.EVENT_DUMP_FAILED) and "file" in report:
        found[names.FILE_PATH] = report["file"]
    if event == names.EVENT_EXITED and report.get("exit", {}).get("known"):
        found[names.EXIT_CODE] = report["exit"]["code"]
        found[names.EXIT_SIGNAL] = report["exit"]["signal"]
    if event in (names.EVENT_EXITED, names.EVENT_EXCEPTION):
        exception = report.get("exception") or {}
        for key, name in (
            ("type", names.EXCEPTION_TYPE),
            ("message", names.EXCEPTION_MESSAGE),
            ("stack", names.EXCEPTION_STACKTRACE),
        ):
            if exception.get(key):
                found[name] = exception[key]
    return found


def _seconds(start_ns: int, end_ns: int) -> float:
    return round(max(0, end_ns - start_ns) / 1e9, 6)
