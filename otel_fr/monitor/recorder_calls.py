"""The calls of a rank as PyTorch's recorder shows them, in the place of those of its ring (``OTEL_FR_CAPTURE=native``).

Process groups are those of the ring, where torch's registration of them is noticed. What PyTorch's recorder does not
know is left open: reduce ops, roots, tags, splits, call sites.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from otel_fr.dumps import fields, operation_names
from otel_fr.dumps.contents import FrozenCalls
from otel_fr.monitor.recorder_entries import Entry, last_of_calls
from otel_fr.ring import (
    KIND_COLLECTIVE,
    KIND_P2P,
    POSTED,
    GroupDef,
    GroupProgress,
    ProcessState,
    Record,
    RecordState,
    RingReader,
    SignatureDef,
    SiteDef,
)
from otel_fr.torch_recorder import is_of_device

MAX_SIGNATURES: Final = 8192
"""Different signatures that are kept as one object each; after that they are made anew."""
MAX_AGE_NS: Final = 2_000_000_000
"""What was read longer ago does not say where a rank is for which others wait; they may wait for 5 s."""
_OF_COMMUNICATION: Final = ("gloo", "onnection", "imed out", "imeout")
"""Parts of the messages of exceptions that gloo's calls raise."""
_NO_SITE: Final = SiteDef(())
_UNKNOWN_SPLITS: Final[tuple[int, ...]] = ()


class CallSource(Protocol):
    """Where the calls of a rank are read: its ring, or this. The methods and properties are those of `RingReader`."""

    @property
    def head(self) -> int: ...
    @property
    def untracked(self) -> int: ...
    def records(self, since: int = 0) -> Iterator[Record]: ...
    def ended(self, record_id: int) -> tuple[RecordState, int | None, int | None] | None: ...
    def groups(self) -> list[GroupProgress]: ...


class RecorderCalls:
    """Calls read from PyTorch's recorder.

    Args:
        ring: of the rank: its process groups, and whether an exception ends it.
        capacity: calls kept.

    Attributes:
        first: the first call of the run. missed: calls that the recorder had overwritten before they were read.
        errors: 1: the recorder did not answer for a time, so that the rank decides no verdict.
    """

    def __init__(self, ring: RingReader, capacity: int) -> None:
        self._ring = ring
        self._kept: deque[Record] = deque(maxlen=capacity)
        self._next = 0
        self._ids: dict[tuple[str, int], int] = {}
        self._newest: dict[str, int] = {}
        self._open: dict[int, tuple[str, int]] = {}
        self._ending: set[int] = set()
        self._shows_begins = False
        self._signatures: dict[object, SignatureDef] = {}
        self._groups: dict[str, GroupDef] = {}
        self._pairs: dict[tuple[str, str, int | None, int | None], int] = {}
        self._progress: dict[str, GroupProgress] = {}
        self._asked_ns = -MAX_AGE_NS
        self.first = 0
        self.missed = 0
        self.errors = 0

    # ---- as a ring reader

    @property
    def head(self) -> int:
        return self._next

    @property
    def untracked(self) -> int:
        return self._ring.untracked

    def records(self, since: int = 0) -> Iterator[Record]:
        """As `RingReader.records`."""
        first = self._next - len(self._kept)
        for at in range(max(0, since - first), len(self._kept)):
            yield self._kept[at]

    def ended(self, record_id: int) -> tuple[RecordState, int | None, int | None] | None:
        """As `RingReader.ended`."""
        at = record_id - (self._next - len(self._kept))
        if not 0 <= at < len(self._kept):
            return None
        record = self._kept[at]
        return record.state, record.ended_ns, record.waited_ns

    def groups(self) -> list[GroupProgress]:
        """The live groups, with the progress that the recorder shows."""
        rows = self._ring.groups()
        for row in rows:
            self._groups[row.group.name] = row.group
        return [replace(self._progress.get(row.group.id, _none(row.group)), group=row.group) for row in rows]

    def frozen(self) -> FrozenCalls:
        """A copy as of now."""
        return FrozenCalls(self.first, self._next, self.missed, list(self._kept), self.groups())

    # ---- from the recorder

    def note(self, entries: Sequence[Entry], asked_ns: int, wall_offset_ns: int) -> None:
        """What the recorder holds, oldest first of each handler; see `Snapshot`."""
        self.groups()
        self._asked_ns = asked_ns
        self._shows_begins = self._shows_begins or any(entry.began for entry in entries)
        last = last_of_calls(entries)
        there: set[tuple[str, int]] = set()
        is_failing = self._ring.exception is not None
        for entry in entries:
            end = last.get(entry.key, entry)
            if entry.ends_batch and entry.name.raw == operation_names.COALESCED:
                continue
            if end is not entry and end.name.raw in operation_names.UNEVEN_LISTS:
                continue
            where = (entry.name.backend, entry.record)
            there.add(where)
            if where not in self._ids:
                self._append(where, entry, wall_offset_ns)
            record_id = self._ids.get(where)
            if record_id is not None and record_id in self._open:
                self._look(record_id, end, asked_ns, wall_offset_ns, is_failing)
        for record_id, where in list(self._open.items()):
            if where not in there:
                self._end(record_id, RecordState.UNKNOWN, None)
        self._ids = {where: record_id for where, record_id in self._ids.items() if where in there}

    def _append(self, where: tuple[str, int], entry: Entry, wall_offset_ns: int) -> None:
        """A new entry, unless its group is not known: one that was created before recording began."""
        group = self._groups.get(entry.group)
        backend, number = where
        newest = self._newest.get(backend, -1)
        if group is None or number <= newest:
            return
        self.missed += number - newest - 1
        self._newest[backend] = number
        issued = entry.created - wall_offset_ns
        raw = entry.raw
        record = Record(
            record_id=self._next,
            issued_ns=issued,
            waited_ns=None,
            ended_ns=None,
            state=RecordState.IN_FLIGHT,
            coll_seq=fields.integer(raw.get("collective_seq_id")) or 0,
            p2p_seq=fields.integer(raw.get("p2p_seq_id")) or 0,
            op_id=fields.integer(raw.get("op_id")) or 0,
            pair_index=self._pair_index(entry),
            kind=KIND_P2P if entry.is_p2p else KIND_COLLECTIVE,
            flags=0,
            timeout_ms=max(0, fields.integer(raw.get("timeout_ms")) or 0),
            thread=fields.short_text(raw.get("thread_name")),
            group=group,
            signature=self._signature(entry, group),
            site=_NO_SITE,
        )
        self._ids[where] = record.record_id
        self._open[record.record_id] = where
        self._kept.append(record)
        self._next += 1
        row = self._progress.get(group.id) or _none(group)
        self._progress[group.id] = replace(
            row,
            enqueued=row.enqueued if entry.is_p2p else max(row.enqueued, record.coll_seq),
            p2p_enqueued=max(row.p2p_enqueued, record.p2p_seq),
            issued=row.issued + 1,
            last_issue_ns=issued,
        )

    def _pair_index(self, entry: Entry) -> int:
        """How many sends or receives of this pair came before, as far as they were seen."""
        if not entry.is_p2p:
            return 0
        pair = (entry.group, entry.operation, entry.name.source, entry.name.destination)
        found = self._pairs.get(pair, 0)
        self._pairs[pair] = found + 1
        return found

    def _look(self, record_id: int, entry: Entry, asked_ns: int, wall_offset_ns: int, is_failing: bool) -> None:
        """An entry of a call in flight, or the end of the batch that it is in."""
        if entry.ended:
            self._end(record_id, RecordState.COMPLETED, entry.ended - wall_offset_ns)
        elif entry.is_retired:
            # gloo's calls are retired when they fail, too, and the exception comes a moment later: look once more.
            if is_failing or record_id in self._ending:
                self._end(record_id, self._retired(), asked_ns)
            else:
                self._ending.add(record_id)
                self._replace(record_id, waited_ns=POSTED)
        elif self._shows_begins and is_of_device(entry.name.backend):
            # Nothing waits in it before the device has begun it.
            began = max(entry.began - wall_offset_ns, POSTED + 1) if entry.began else POSTED
            if self._kept[record_id - (self._next - len(self._kept))].waited_ns in (None, POSTED):
                self._replace(record_id, waited_ns=began)  # later answers say of it the time of their questions

    def lose(self) -> None:
        """The recorder does not answer: unless the rank ends, it is not known what it does, and may never be."""
        if self._ring.state == ProcessState.RUNNING and self._ring.meta.get("exiting") is not True:
            self.errors = 1

    def may_report(self, now_ns: int) -> bool:
        """False: what is known is too old to say how far the rank is. ``now_ns``: monotonic."""
        return self.errors > 0 or now_ns - self._asked_ns < MAX_AGE_NS

    def settle(self) -> bool:
        """The rank ends, so what was retired is not looked at again. False: there is no such call."""
        found = list(self._ending)
        for record_id in found:
            self._end(record_id, self._retired(), self._asked_ns)
        return bool(found)

    def _retired(self) -> RecordState:
        """How a call has ended that was seen to be retired a moment ago. That an exception was caught is not known."""
        message = str((self._ring.exception or {}).get("message", ""))
        failed = any(part in message for part in _OF_COMMUNICATION)
        return RecordState.FAILED if failed else RecordState.COMPLETED

    def _end(self, record_id: int, state: RecordState, ended_ns: int | None) -> None:
        self._open.pop(record_id, None)
        self._ending.discard(record_id)
        ended_ns = None if ended_ns is None else max(ended_ns, 1)
        record = self._replace(record_id, state=state, ended_ns=ended_ns, waited_ns=None)
        if record is None:
            return
        row = self._progress.get(record.group.id) or _none(record.group)
        done = record.coll_seq if state is RecordState.COMPLETED and record.kind == KIND_COLLECTIVE else 0
        last = max(row.last_end_ns, ended_ns or 0)
        self._progress[record.group.id] = replace(
            row, completed=max(row.completed, done), ended=row.ended + 1, last_end_ns=last
        )

    def _replace(self, record_id: int, **changes: Any) -> Record | None:
        """The record with these changes; None: it is not kept any more."""
        at = record_id - (self._next - len(self._kept))
        if at < 0:
            return None
        record = self._kept[at] = self._kept[at]._replace(**changes)
        return record

    def _signature(self, entry: Entry, group: GroupDef) -> SignatureDef:
        raw = entry.raw
        ins, outs = _sizes(raw.get("input_sizes")), _sizes(raw.get("output_sizes"))
        in_types = fields.checked_dtypes(fields.dtypes(raw.get("input_dtypes")))
        out_types = fields.checked_dtypes(fields.dtypes(raw.get("output_dtypes")))
        key = (entry.name, group.ranks, ins, outs, in_types, out_types)
        known = self._signatures.get(key)
        if known is None:
            if len(self._signatures) >= MAX_SIGNATURES:
                self._signatures.clear()
            operation = entry.operation
            if operation == "all_to_all" and len(ins) == len(outs) == 1:
                operation = "all_to_all_single"
            splits = _UNKNOWN_SPLITS if operation == "all_to_all_single" else None
            peer = entry.name.destination if operation == "send" else entry.name.source
            known = self._signatures[key] = SignatureDef(
                operation=operation,
                backend=entry.name.backend,
                input_sizes=ins,
                output_sizes=outs,
                input_dtypes=in_types,
                output_dtypes=out_types,
                reduce_op=None,
                root=None,
                peer=None if peer is None else _global(group, peer),
                tag=0 if entry.is_p2p else None,
                input_splits=splits,
                output_splits=splits,
                input_bytes=fields.bytes_of(ins, in_types) or 0,
                output_bytes=fields.bytes_of(outs, out_types) or 0,
                any_source=entry.is_p2p and peer is None,
            )
        return known


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    if not fields.bounded_sizes([value], fields.MAX_DIMENSIONS * 4096):
        return ()
    return fields.checked_sizes(tuple(map(tuple, value))) if isinstance(value, list) else ()


def _global(group: GroupDef, rank: int) -> int:
    return group.ranks[rank] if 0 <= rank < len(group.ranks) else rank


def _none(group: GroupDef) -> GroupProgress:
    return GroupProgress(group, 0, 0, 0, 0, 0, 0, 0)
