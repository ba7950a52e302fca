"""The calls of a rank that only PyTorch's recorder has: made past PyTorch's operators, as on a backend object.

With ``OTEL_FR_CAPTURE=both``. They are counted, in the rank's metrics too, and are no ground for a verdict: the ring
numbers a group's calls without them, so that their numbers are those of other calls.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from otel_fr.monitor.device_calls import Tracked
from otel_fr.monitor.recorder_calls import RecorderCalls
from otel_fr.monitor.recorder_entries import Entry
from otel_fr.monitor.tail import Tail
from otel_fr.presentation import group_name
from otel_fr.printable import one_line
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, Record, RingReader
from otel_fr.torch_recorder import of_backend

_log = logging.getLogger("otel_fr.monitor")

KEPT: Final = 2_000
"""Calls kept: what PyTorch's recorder keeps unless ``TORCH_FR_BUFFER_SIZE`` says otherwise."""
MAX_PENDING: Final = 20_000
"""Calls of the ring that wait for their entries, of one group: what a monitor reads of the ring at once."""


@dataclass(slots=True)
class _Group:
    """What is known of one process group.

    Attributes:
        since: wall ns when it was first seen. Entries before that may be of a group of that name that is gone.
        covered: highest number of the ring's calls, by the ring's numbers; `looked`: highest one of an entry seen.
        pending: of each of the ring's calls, when it was enqueued (monotonic ns), and the last number that it takes.
        numbers: of the calls that the ring has not, ascending, as far as the recorder still has them.
        earlier: how many more there were.
    """

    since: int
    covered: int = 0
    looked: int = 0
    pending: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MAX_PENDING))
    numbers: list[int] = field(default_factory=list)
    earlier: int = 0
    is_told: bool = False

    @property
    def count(self) -> int:
        return self.earlier + len(self.numbers)

    def before(self, number: int) -> int:
        """How many of them have lower numbers."""
        return self.earlier + bisect_left(self.numbers, number)

    def has(self, number: int) -> bool:
        """It is the number of one of them."""
        at = bisect_left(self.numbers, number)
        return at < len(self.numbers) and self.numbers[at] == number

    def find(self, calls: Mapping[int, int]) -> None:
        """Find them among the recorder's calls.

        How many there are is certain: the recorder has numbered more calls than the ring, which was read later. Which
        ones: those before which the ring has no call that waits for its entry. Clocks decide that, so at the worst
        another one of the same calls is taken.

        Args:
            calls: when each was enqueued (monotonic ns), by its number, ascending.
        """
        new = [number for number in calls if number > self.looked]
        if not new:
            return
        self.looked = new[-1]
        more = self.looked - self.covered - self.count
        found: list[int] = []
        for number in new:
            own = number - self.count - len(found)
            while self.pending and self.pending[0][1] < own:
                self.pending.popleft()
            is_known = self.pending and self.pending[0][0] <= calls[number]
            if not is_known and len(found) < more:
                found.append(number)
        chosen = set(found)
        others = [number for number in new if number not in chosen]
        missing = min(max(0, more - len(found)), len(others))
        self.numbers += sorted([*found, *others[len(others) - missing :]])

    def forget(self, first: int) -> None:
        """The recorder has no entries of lower numbers any more."""
        at = bisect_left(self.numbers, first)
        self.earlier += at
        del self.numbers[:at]


class UnseenCalls:
    """Finds them among a recorder's entries, and follows them to their ends.

    In a rank that goes on calling, they are found when it makes a pause: until then the ring may have later calls.
    """

    def __init__(self, ring: RingReader) -> None:
        self._ring = ring
        self._next = 0
        self._groups: dict[str, _Group] = {}
        self._names: dict[str, GroupDef] = {}
        self._calls = RecorderCalls(ring, KEPT)
        self._tail = Tail(self._calls)

    @property
    def count(self) -> int:
        """How many were found."""
        return sum(group.count for group in self._groups.values())

    def note(self, entries: Sequence[Entry], asked_ns: int, wall_offset_ns: int) -> list[Entry]:
        """What the recorder holds; see `Snapshot`.

        Returns:
            the entries of the calls that the ring has, with the ring's numbers.
        """
        self._read_ring(asked_ns, wall_offset_ns)
        ours: dict[str, dict[int, int]] = {}
        for entry in entries:
            group = self._group_of(entry)
            if group is not None:
                ours.setdefault(entry.group, {}).setdefault(entry.number, entry.created - wall_offset_ns)
        for name, calls in ours.items():
            self._groups[self._names[name].id].find(calls)
        unseen: list[Entry] = []
        seen: list[Entry] = []
        for entry in entries:
            group = self._group_of(entry)
            if group is not None and group.has(entry.number):
                unseen.append(entry)
            elif group is not None:
                seen.append(entry._replace(number=entry.number - group.before(entry.number)))
            else:
                seen.append(entry)
        self._calls.note(unseen, asked_ns, wall_offset_ns)
        for name, calls in ours.items():
            self._tell(self._names[name])
            self._groups[self._names[name].id].forget(min(calls))
        return seen

    def _group_of(self, entry: Entry) -> _Group | None:
        """None: its calls are not compared."""
        known = self._names.get(entry.group)
        if known is None or entry.is_p2p or of_backend(entry.name.backend) is None:
            return None
        group = self._groups[known.id]
        return group if entry.created >= group.since else None

    def _read_ring(self, asked_ns: int, wall_offset_ns: int) -> None:
        for record in islice(self._ring.records(self._next), MAX_PENDING):
            self._next = record.record_id + 1
            if record.kind != KIND_COLLECTIVE:
                continue
            id_ = record.group.id
            if id_ not in self._groups:
                self._groups[id_] = _Group(record.issued_ns + wall_offset_ns)
                self._names.setdefault(record.group.name, record.group)
            last = record.coll_seq + _further_numbers(record)
            self._groups[id_].covered = max(self._groups[id_].covered, last)
            self._groups[id_].pending.append((record.issued_ns, last))
        for row in self._ring.groups():
            self._names[row.group.name] = row.group
            self._groups.setdefault(row.group.id, _Group(asked_ns + wall_offset_ns))

    def _tell(self, of: GroupDef) -> None:
        group = self._groups[of.id]
        if group.count and not group.is_told:
            group.is_told = True
            _log.warning(
                "calls of process group %s are made past PyTorch's operators: they are counted, and not judged",
                one_line(group_name(of.name, of.description)),
            )

    def take(self) -> list[Tracked]:
        """Those that have ended since the last time."""
        return self._tail.poll(everything=True)

    def settle(self) -> bool:
        """The rank ends; see `RecorderCalls.settle`."""
        return self._calls.settle()


def _further_numbers(record: Record) -> int:
    """How many numbers PyTorch takes for a call beyond its first (`otel_fr.capture.definitions.steps_of`)."""
    signature = record.signature
    takes_more = signature.backend == "gloo" and signature.operation.startswith("reduce_scatter")
    return max(1, len(signature.input_sizes)) - 1 if takes_more else 0
