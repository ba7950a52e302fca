"""Follows the ring: which calls are new, which have ended, and which are still in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import NamedTuple

from otel_fr.monitor.nccl.device_calls import DeviceCalls, Tracked
from otel_fr.monitor.ring.fingerprints import Fingerprints
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, GroupProgress, Record, RecordState, RingReader
from otel_fr.stacks import is_of_cpp

KEPT_FAILED = 16
"""How many failed calls are kept for reports (docs/reference/rank-report.md)."""
MAX_CHECKED = 2048
"""Most calls in flight checked in one poll: a ring may be full of them, and there are ten polls a second."""
MAX_NEW = 20_000
"""Most new calls read in one poll: a ring may hold millions, and the monitor's memory is bounded."""
MAX_BEYOND_RING = 1024
"""How many calls in flight are kept although the ring has overwritten them."""


@dataclass(slots=True)
class Callers:
    """Who enqueues a group's calls: the number of calls, and the last Python thread among the callers (``ident`` 0:
    none)."""

    calls: int = 0
    ident: int = 0
    name: str = ""


class Reached(NamedTuple):
    """The rank's progress in a group according to its records: sequence numbers of collectives; 0: none."""

    group: GroupDef
    enqueued: int
    completed: int


class Tail:
    """Follows one ring. `poll` returns every record exactly once, when its call has ended.

    A call that destroys a group waits for no other rank and is no progress. It counts only while it is in flight.

    Attributes:
        in_flight: calls in flight by record id, oldest first.
        uncertain: by group id: the newest call whose backend does not show when it ends. Like `failed`, `last` and
            `moved_ns`, it ignores calls that destroy groups.
        failed: the last calls that failed, newest last.
        last: the newest call.
        reached: by group id: the group, its last enqueued and its last completed collective, as far as read.
        moved_ns: when a call was last enqueued or ended, as far as read; 0: never.
        ended: number of calls that have ended.
        fingerprints: fingerprints of the calls of each group.
        missed: number of calls in flight that the ring has overwritten before their end was seen.
    """

    def __init__(self, reader: RingReader, first: int = 0, devices: DeviceCalls | None = None) -> None:
        """Args:
        first: the first record to follow.
        devices: PyTorch's recorder, for calls whose backend does not show when they end.
        """
        self._reader = reader
        self._devices = devices or DeviceCalls()
        self._next = first
        self._cursor = 0
        self._last_end_ns = 0
        self.in_flight: OrderedDict[int, Tracked] = OrderedDict()
        self.uncertain: dict[str, Tracked] = {}
        self.failed: deque[Tracked] = deque(maxlen=KEPT_FAILED)
        self.last: Tracked | None = None
        self.reached: dict[str, Reached] = {}
        self.moved_ns = 0
        self.ended = 0
        self.missed = 0
        self._callers: dict[str, Callers] = {}
        self.fingerprints = Fingerprints(first)

    @property
    def caller(self) -> tuple[int, str]:
        """Ident and name of the Python thread that enqueues the rank's calls, mostly the main thread.

        It is the thread that last used the group with the most calls, because other threads may use other groups, for
        example to write a checkpoint. (0, ""): unknown. C++ threads, such as the backward pass's, do not count, because
        they run no code of the program.
        """
        most = max(self._callers.values(), key=lambda one: one.calls, default=Callers())
        return most.ident, most.name

    def poll(self, everything: bool = False, until: int | None = None) -> list[Tracked]:
        """Return the calls that have ended since the last poll, in the order in which they were enqueued.

        Args:
            everything: check every call in flight, however many there are.
            until: the first record that must not be read; None: read all.
        """
        ended = self._check_in_flight(None if everything else MAX_CHECKED)
        head = self._reader.head if until is None else until
        if head > self._next:
            found = islice(self._reader.records(self._next), MAX_NEW)
            new = list(takewhile(lambda record: record.record_id < head, found))
            # If no record up to there is valid, skip them: damaged records stay damaged.
            self._next = new[-1].record_id + 1 if new else head
            if new:
                self._take(new, ended)
        ended += self._settle()
        if ended:
            self.ended += len(ended)
            self._note_ends(ended)
        return ended

    def _settle(self) -> list[Tracked]:
        """Apply what PyTorch's recorder has shown. Return the calls that have ended; others are put in `in_flight`."""
        ended: list[Tracked] = []
        is_ordered = True
        for item in self._devices.settle():
            record = item.record
            known = self.uncertain.get(record.group.id)
            if known is not None and known.record.record_id == record.record_id and item.device is not None:
                del self.uncertain[record.group.id]
            if record.state is RecordState.IN_FLIGHT:
                is_ordered = is_ordered and (
                    record.record_id in self.in_flight or record.record_id > next(reversed(self.in_flight), -1)
                )
                self.in_flight[record.record_id] = item
            else:
                self.in_flight.pop(record.record_id, None)
                ended.append(item)
        if not is_ordered:
            self.in_flight = OrderedDict(sorted(self.in_flight.items()))
        return ended

    def is_behind(self, until: int | None = None) -> bool:
        """Return True if there are unread records. ``until``: see `poll`."""
        return (self._reader.head if until is None else until) > self._next

    def _reach(self, record: Record) -> None:
        known = self.reached.get(record.group.id)
        enqueued, completed = (known.enqueued, known.completed) if known is not None else (0, 0)
        if record.kind == KIND_COLLECTIVE:
            enqueued = max(enqueued, record.coll_seq)
            if record.state is RecordState.COMPLETED:
                completed = max(completed, record.coll_seq)
        self.reached[record.group.id] = Reached(record.group, enqueued, completed)

    def forget(self, groups: Iterable[str]) -> None:
        for id_ in groups:
            self.reached.pop(id_, None)
            self._callers.pop(id_, None)
            self.fingerprints.forget((id_,))

    def _take(self, new: list[Record], ended: list[Tracked]) -> None:
        self.fingerprints.take(new)
        ends = sorted(
            [item.record.ended_ns for item in ended if item.record.ended_ns]
            + [record.ended_ns for record in new if record.ended_ns]
        )
        for record in new:
            item = Tracked(record, self._gap(record.issued_ns, ends))
            self._reach(record)
            if record.state is RecordState.IN_FLIGHT:
                self.in_flight[record.record_id] = item
            else:
                self._end(item, ended)
            if record.destroys:
                continue
            self._note_caller(record)
            self.moved_ns = max(self.moved_ns, record.issued_ns)
            if record.state is RecordState.UNKNOWN:
                self.uncertain[record.group.id] = item
            else:
                self.uncertain.pop(record.group.id, None)
            self.last = item

    def _note_caller(self, record: Record) -> None:
        callers = self._callers.get(record.group.id)
        if callers is None:
            callers = self._callers[record.group.id] = Callers()
        callers.calls += 1
        if callers.ident != record.thread_ident and not is_of_cpp(record.thread):
            callers.ident, callers.name = record.thread_ident, record.thread

    def _end(self, item: Tracked, ended: list[Tracked]) -> None:
        """Handle a call that has ended according to the ring. PyTorch's recorder may know its end better."""
        if self._devices.holds(item.record):
            self._devices.hold(item)
        else:
            ended.append(item)

    def _gap(self, issued_ns: int, ends: list[int]) -> float | None:
        """Return the seconds since the last call's end. ``ends``: sorted ends of this poll's calls."""
        count = bisect_right(ends, issued_ns)
        before = max(ends[count - 1] if count else 0, self._last_end_ns)
        return (issued_ns - before) / 1e9 if 0 < before <= issued_ns else None

    def _note_ends(self, ended: list[Tracked]) -> None:
        for item in ended:
            record = item.record
            if record.destroys:
                continue
            self.moved_ns = max(self.moved_ns, record.ended_ns or 0)
            if record.state is RecordState.FAILED:
                self.failed.append(item)
            elif record.state is RecordState.COMPLETED and record.kind == KIND_COLLECTIVE:
                self._reach(record)
        last = max((item.record.ended_ns or 0) for item in ended)
        self._last_end_ns = max(self._last_end_ns, last)
        last_item = self.last
        if last_item is not None and last_item.record.state in (RecordState.IN_FLIGHT, RecordState.UNKNOWN):
            wanted = last_item.record.record_id
            self.last = next((item for item in ended if item.record.record_id == wanted), last_item)

    def _check_in_flight(self, limit: int | None) -> list[Tracked]:
        """Remove ended calls from `in_flight`, and return them. With a limit, each poll also checks other calls."""
        if not self.in_flight:
            return []
        if limit is None or len(self.in_flight) <= limit:
            items = list(self.in_flight.items())
        else:
            # The oldest matter most and end first; the others are checked in turn.
            half = limit // 2
            start = half + self._cursor % (len(self.in_flight) - half)
            items = [*islice(self.in_flight.items(), half), *islice(self.in_flight.items(), start, start + half)]
            self._cursor += half
        ended: list[Tracked] = []
        overwritten: list[Tracked] = []
        for record_id, item in items:
            if item.device is not None:  # PyTorch's recorder shows its end
                continue
            now = self._reader.ended(record_id)
            if now is None:
                overwritten.append(item)
            elif now[0] is not RecordState.IN_FLIGHT:
                del self.in_flight[record_id]
                item = item._replace(record=item.record._replace(state=now[0], ended_ns=now[1]))
                self._note_uncertain(item)
                self._end(item, ended)
            elif now[2] != item.record.waited_ns:
                item = item._replace(record=item.record._replace(waited_ns=now[2]))
                self.in_flight[record_id] = item
                if self.last is not None and self.last.record.record_id == record_id:
                    self.last = item
        if overwritten:
            self._check_overwritten(overwritten)
        return ended

    def _note_uncertain(self, item: Tracked) -> None:
        """Note a call whose backend has returned and does not show when the call ends, as if it was never in flight."""
        record = item.record
        reached = self.reached.get(record.group.id)
        if record.state is RecordState.UNKNOWN and reached is not None and record.coll_seq >= reached.enqueued:
            self.uncertain.setdefault(record.group.id, item)

    def _check_overwritten(self, items: Iterable[Tracked]) -> None:
        """Remove overwritten calls that cannot be in flight any more, according to the counts of their groups."""
        rows = {row.group.id: row for row in self._reader.groups()}
        kept = 0
        for item in items:
            if _may_be_in_flight(item.record, rows.get(item.record.group.id)) and kept < MAX_BEYOND_RING:
                kept += 1
            else:
                del self.in_flight[item.record.record_id]
                self.missed += 1


def _may_be_in_flight(record: Record, row: GroupProgress | None) -> bool:
    if row is None or row.ended >= row.issued:
        return False
    return record.kind != KIND_COLLECTIVE or row.completed < record.coll_seq
