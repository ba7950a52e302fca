"""The contents of a flight-recorder file: a rank's records, its progress in each group, and its state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TYPE_CHECKING, Any

from otel_fr import rank_report
from otel_fr.dumps import torchview
from otel_fr.dumps.decisions import reported_decisions
from otel_fr.dumps.device_times import DeviceTimes, by_device, of_followed
from otel_fr.dumps.exceptions import reported_exception, reported_thread_exceptions
from otel_fr.dumps.step_calls import step_calls, steps_of
from otel_fr.identity import STREAMS, Stream, encode_ranks
from otel_fr.ring import EARLIER_RUNS, KIND_GROUP, KIND_MONITORED, KIND_P2P, STATE_TEXT, ProcessState, RecordState
from otel_fr.torch_recorder import is_followed

if TYPE_CHECKING:
    from otel_fr.ring import GroupDef, GroupProgress, Record, RingReader, SignatureDef

SCHEMA = "2.10"
"""Version of PyTorch's flight-recorder schema that the files follow (torch 2.13's)."""

FORMAT = 1
"""Version of the ``otel_fr`` keys that are added to that schema."""
FIRST = ("attempt", "host", "pid_namespace", "pid")
"""The keys after ``format``. With them, the first bytes of a file identify the process that it is about."""


def _decided(reader: RingReader, records: Sequence[Record]) -> dict[str, Any]:
    """The present step and the program's decisions."""
    steps = steps_of(reader)
    found = reported_decisions(reader.decisions, step_calls(records, steps))
    decisions = [rank_report.to_object(item) for item in found]
    return {**({"step": steps[-1].step} if steps else {}), **({"decisions": decisions} if decisions else {})}


def stream_of(record: Record) -> Stream:
    """The stream in which the call is numbered."""
    return STREAMS[record.kind] if record.kind < len(STREAMS) else "collective"


@dataclass(slots=True)
class DumpContents:
    """Everything that goes into one file.

    Attributes:
        rank: global rank.
        facts: what otel-fr adds to PyTorch's schema (docs/reference/dump-format.md), without ``groups``.
        groups: progress of every group.
        records: the calls, oldest first.
        now_ns: monotonic time at which the records were read.
        wall_offset_ns: wall clock minus monotonic clock.
        has_untracked: some live groups are not in ``groups``. So a group that only the records show may be live.
        first_record: the first call of the run.
        devices: record id -> the call's progress on the device, for calls where it is known.
    """

    rank: int
    facts: dict[str, Any]
    groups: Sequence[GroupProgress]
    records: Sequence[Record]
    now_ns: int
    wall_offset_ns: int
    has_untracked: bool = False
    first_record: int = 0
    devices: Mapping[int, DeviceTimes] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    _views: dict[tuple[int, str, int], dict[str, Any]] = field(default_factory=dict)
    _frames: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def from_ring(
        cls,
        reader: RingReader,
        *,
        reason: str,
        rank_info: Mapping[str, Any] | None = None,
        devices: Mapping[int, DeviceTimes] | None = None,
    ) -> DumpContents:
        """Read the ring's present contents.

        Args:
            reason: why the file is written (``"stall"``, ``"crash"``, ``"signal"``, ...).
            rank_info: further facts about the rank, by the keys of docs/reference/rank-report.md: ``exit``,
                ``exception``, ``thread_exceptions``, ``stack``, ``python_blocked``, ``dropped``. Plain values only.
            devices: record id -> the call's progress by PyTorch's recorder. Used if the ring does not know the state.

        Raises:
            RingFormatError: the ring cannot be read.
        """
        before = _open_calls(reader.groups())
        first = reader.first_record
        devices = devices or {}
        records = [by_device(record, devices.get(record.record_id)) for record in reader.records(first)]
        # Only PyTorch's recorder knows which of NCCL's calls have completed.
        done = _furthest(record for record in records if record.state is RecordState.COMPLETED)
        groups = [replace(row, completed=max(row.completed, done.get(row.group.id, 0))) for row in reader.groups()]
        head, lost, torn = reader.head, reader.lost, reader.torn
        meta, info = dict(reader.meta), dict(rank_info or {})
        meta.pop(EARLIER_RUNS, None)
        # A call that ended while the records were read is in flight in only one of the two counts.
        live = {row.group.id for row in groups}
        still_open = sum(record.state is RecordState.IN_FLIGHT and record.group.id in live for record in records)
        whole = (bool(records) and records[0].record_id == first and not torn) or head == first
        decided = _decided(reader, records)
        offset = reader.wall_offset_ns
        now = time.monotonic_ns()
        exception, of_threads = reported_exception(reader), reported_thread_exceptions(reader)
        told = {"pid": reader.pid, **meta, **info}
        facts: dict[str, Any] = {
            "format": FORMAT,
            **{key: told[key] for key in FIRST if key in told},
            **told,
            **decided,
            "reason": reason,
            "written_at": now + offset,
            "wall_offset_ns": offset,
            "records": {
                "issued": head,
                "first": records[0].record_id if records else None,
                "last": records[-1].record_id if records else None,
                "lost": lost,
                "torn": torn,
            },
            "counters": {**reader.counters, "decision_errors": reader.decisions.failures if reader.decisions else 0},
            "complete": whole or min(before, _open_calls(groups)) <= still_open,
            "clean": reader.state == ProcessState.CLEAN,
        }
        if exception is not None:
            facts.setdefault("exception", rank_report.to_object(exception))
        if of_threads:
            facts.setdefault("thread_exceptions", [rank_report.to_object(item) for item in of_threads])
        rank = meta.get("rank")
        return cls(
            rank=rank if isinstance(rank, int) else 0,
            facts=plain_dict(facts),
            groups=groups,
            records=records,
            now_ns=now,
            wall_offset_ns=offset,
            has_untracked=reader.untracked > 0,
            first_record=first,
            devices=devices,
        )

    def header(self) -> dict[str, Any]:
        """Every top-level key of the file except ``entries``, ``otel_fr`` first."""
        config: dict[str, dict[str, Any]] = {}
        recorded: dict[str, list[Record]] = {}
        for progress in self.groups:
            config[self._key(progress.group)] = _config(progress.group.name, progress.group, progress.group.ranks)
        for record in self.records:
            recorded.setdefault(record.group.id, []).append(record)
            key, ranks = self._config_key(record)
            if key not in config:
                config[key] = _config(key, record.group, ranks)
        live = {progress.group.id for progress in self.groups}
        begun = _furthest(record for record in self.records if self._has_begun(record))  # PyTorch: -1 without timing
        table = [self._live_group(progress, recorded.get(progress.group.id, [])) for progress in self.groups]
        table += [self._gone_group(records) for id_, records in recorded.items() if id_ not in live]
        return {
            "otel_fr": {**self.facts, "rank": self.rank, "groups": table},
            "version": SCHEMA,
            "comm_lib_version": self.facts.get("comm_lib_version", ""),
            "pg_config": config,
            "pg_status": {
                str(progress.group.local_id): {
                    "last_enqueued_collective": progress.enqueued,
                    "last_started_collective": begun.get(progress.group.id, -1),
                    "last_completed_collective": progress.completed,
                }
                for progress in self.groups
            },
        }

    def _has_begun(self, record: Record) -> bool:
        seen = self.devices.get(record.record_id)
        return seen is not None and seen.began_ns is not None

    def _group(self, group: GroupDef, records: Sequence[Record], enqueued: int, issued: int) -> dict[str, Any]:
        sequence_ids = [record.coll_seq for record in records if stream_of(record) == "collective"]
        from_the_start = not self.records or self.records[0].record_id == self.first_record
        dropped = not from_the_start and issued > len(records)
        return {
            "key": self._key(group),
            "id": group.id,
            "name": group.name,
            "desc": group.description,
            "ranks": encode_ranks(group.ranks),
            "backend": group.backend,
            "pg_id": group.local_id,
            "enqueued": enqueued,
            "first_recorded": min(sequence_ids, default=enqueued + 1) if dropped else None,
        }

    def _live_group(self, progress: GroupProgress, records: Sequence[Record]) -> dict[str, Any]:
        last = max(progress.last_issue_ns, progress.last_end_ns)
        return {
            **self._group(progress.group, records, progress.enqueued, progress.issued),
            "completed": progress.completed,
            "p2p": progress.p2p_enqueued,
            "issued": progress.issued,
            "ended": progress.ended,
            "idle_s": (self.now_ns - last) / 1e9 if last else None,
            "gone": False,
        }

    def _gone_group(self, records: Sequence[Record]) -> dict[str, Any]:
        """A destroyed group, with the progress that the records show."""
        collectives = [record for record in records if stream_of(record) == "collective"]
        done = [record.coll_seq for record in collectives if record.state is RecordState.COMPLETED]
        enqueued = max((record.coll_seq for record in collectives), default=0)
        return {
            **self._group(records[0].group, records, enqueued, len(records) + 1),
            "completed": max(done, default=0),
            "gone": not self.has_untracked,
        }

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield PyTorch's entries, oldest first, one at a time, so that a large ring needs little memory."""
        previous_end: int | None = None
        for record in self.records:
            yield self._entry(record, previous_end)
            if record.ended_ns is not None:
                previous_end = max(record.ended_ns, previous_end or 0)

    def _key(self, group: GroupDef) -> str:
        """Key of the group in ``pg_config``: c10d's name, unless another group of the file already has it."""
        key = self._keys.get(group.id)
        if key is None:
            key = group.name if group.name not in self._keys.values() else f"{group.name} ({group.id[:8]})"
            self._keys[group.id] = key
        return key

    def _config_key(self, record: Record) -> tuple[str, Sequence[int]]:
        """The record's key in ``pg_config``, and the ranks listed there."""
        key, signature = self._key(record.group), record.signature
        if record.kind == KIND_P2P:
            pair = self._pair(key, signature)
            return pair.key, pair.ranks
        if record.kind == KIND_MONITORED:
            key = f"{key} monitored_barrier"
        if record.destroys:  # in this call, a rank waits for no other rank
            return f"{key} {signature.operation} {self.rank}", (self.rank,)
        if record.kind == KIND_GROUP and signature.new_group is not None:
            new = signature.new_group
            return f"{key} new_group {new.name}", record.group.ranks if new.awaits_all else new.ranks
        return key, record.group.ranks

    def _pair(self, key: str, signature: SignatureDef) -> torchview.Pair:
        peer = None if signature.any_source else signature.peer
        return torchview.pair(key, signature.operation, self.rank, peer, signature.tag)

    def _entry(self, record: Record, previous_end: int | None) -> dict[str, Any]:
        wall, state = self.wall_offset_ns, STATE_TEXT[record.state]
        ended = record.ended_ns
        stream = stream_of(record)
        entry = {
            "frames": self._site_frames(record),
            "record_id": record.record_id,
            "pg_id": record.group.local_id,
            "thread_name": record.thread,
            "thread_id": "",
            "collective_seq_id": record.pair_index + 1 if record.kind == KIND_P2P else record.coll_seq,
            "p2p_seq_id": record.p2p_seq,
            "op_id": record.op_id,
            "time_created_ns": record.issued_ns + wall,
            "state": "completed" if state == "completed" else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": ended + wall if ended is not None and state == "completed" else None,
            "retired": state == "completed",
            "timeout_ms": record.timeout_ms,
            "is_p2p": record.kind == KIND_P2P,
            "otel_fr_group": record.group.id,
            "otel_fr_kind": stream,
            "otel_fr_seq": record.sequence_id,
            "otel_fr_state": state,
            "otel_fr_issued_ns": record.issued_ns,
            "otel_fr_ended_ns": ended,
        }
        entry.update(self._signature(record))
        seen = self.devices.get(record.record_id) or of_followed(record)
        if seen is not None and seen.began_ns is not None:
            entry["time_discovered_started_ns"] = seen.began_ns + wall
            entry["state"] = "completed" if state == "completed" else "started"
        if seen is not None and seen.is_captured:
            entry["otel_fr_captured"] = True
        if seen is not None and seen.duration_s is not None:
            entry["duration_ms"] = seen.duration_s * 1e3
        elif ended is not None and (state == "failed" or not is_followed(record.signature.backend)):
            entry["duration_ms"] = (ended - record.issued_ns) / 1e6
        elif ended is None and record.waited_ns is not None:
            entry["otel_fr_waited_ns"] = record.waited_ns
        if previous_end is not None:
            entry["otel_fr_gap_s"] = (record.issued_ns - previous_end) / 1e9
        if record.kind == KIND_P2P:
            entry["otel_fr_pair_index"] = record.pair_index
        if state == "failed":
            entry["otel_fr_error"] = "timeout" if record.timed_out else "collective_failed"
        return entry

    def _site_frames(self, record: Record) -> list[dict[str, Any]]:
        frames = self._frames.get(id(record.site))
        if frames is None:
            frames = [{"name": name, "filename": file, "line": line} for file, line, name in record.site.frames]
            self._frames[id(record.site)] = frames
        return frames

    def _signature(self, record: Record) -> dict[str, Any]:
        """The part of an entry that all calls with one signature share."""
        known = (id(record.signature), record.group.id, record.kind)
        part = self._views.get(known)
        if part is None:
            part = self._views[known] = self._signature_part(record, record.signature)
        return part

    def _signature_part(self, record: Record, signature: SignatureDef) -> dict[str, Any]:
        seen = torchview.view(signature.operation, signature.input_sizes, signature.output_sizes)
        name = seen.name
        if record.kind == KIND_P2P:
            name = self._pair("", signature).name
        backend = (signature.backend or record.group.backend).replace(":", "_") or "unknown"
        part: dict[str, Any] = {
            "process_group": (self._config_key(record)[0], record.group.description),
            "profiling_name": f"{backend}:{name}",
            "input_sizes": seen.input_sizes,
            "input_dtypes": list(signature.input_dtypes),
            "output_sizes": seen.output_sizes,
            "output_dtypes": list(signature.output_dtypes),
            "otel_fr_op": signature.operation,
        }
        truth = [list(shape) for shape in signature.input_sizes], [list(shape) for shape in signature.output_sizes]
        for side, sizes in zip(("input", "output"), truth, strict=True):
            if sizes != part[f"{side}_sizes"]:
                part[f"otel_fr_{side}_sizes"] = sizes
        optional = {
            "otel_fr_reduce_op": signature.reduce_op,
            "otel_fr_root": signature.root,
            "otel_fr_peer": signature.peer,
            "otel_fr_tag": signature.tag,
            "otel_fr_input_splits": list(signature.input_splits) if signature.input_splits else None,
            "otel_fr_output_splits": list(signature.output_splits) if signature.output_splits else None,
            "otel_fr_any_source": signature.any_source or None,
            "otel_fr_truncated": signature.truncated or None,
        }
        if signature.new_group is not None:
            new = signature.new_group
            optional["otel_fr_new_name"], optional["otel_fr_new_desc"] = new.name, new.description
            optional["otel_fr_new_ranks"] = encode_ranks(new.ranks)
            optional["otel_fr_awaits_all"] = new.awaits_all
        part.update((key, value) for key, value in optional.items() if value is not None)
        return part


def _furthest(records: Iterable[Record]) -> dict[str, int]:
    """Group id -> the highest sequence number of a collective."""
    found: dict[str, int] = {}
    for record in records:
        if stream_of(record) == "collective":
            found[record.group.id] = max(record.coll_seq, found.get(record.group.id, 0))
    return found


def _open_calls(groups: Sequence[GroupProgress]) -> int:
    return sum(max(progress.issued - progress.ended, 0) for progress in groups)


def plain_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values to builtin types, so that a reader that refuses all other types can load them."""
    return {str(key): _plain(value) for key, value in values.items()}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, Mapping):
        return plain_dict(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value)


def _config(name: str, group: GroupDef, ranks: Sequence[int]) -> dict[str, str]:
    return {"name": name, "desc": group.description, "ranks": str(list(ranks))}
