"""Calls whose backend does not show the host when they end, such as NCCL's. PyTorch's recorder shows their progress.

In the ring, such a call has the state `RecordState.UNKNOWN` as soon as it is enqueued. It is held here until the
recorder shows its end. Source of the rules: FlightRecorder.hpp and FlightRecorderDetail.hpp of torch 2.6 to 2.14.

The recorder shows no exact begin of a call: it shows the time of the request or, for a completed call, the time of its
end (`_began`).
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.monitor.nccl.recorder_entries import Entry, Key, last_of_calls
from otel_fr.operations import family
from otel_fr.ring import KIND_COLLECTIVE, KIND_P2P, POSTED, Record, RecordState
from otel_fr.torch_recorder import is_of_device

MAX_HELD: Final = 20_000
"""Most calls that are held, and most ends that are kept: ten times what PyTorch's recorder keeps. Further calls become
unknown at once, as without the recorder."""
_EARLIER_NS: Final = 100_000_000
"""The recorder's entry is written after the ring's record of a call. Because the clocks differ, it may seem earlier by
up to this much."""
FRESH_NS: Final = 3_000_000_000
"""An answer of the recorder is stale at this age: a call that was in flight then may have ended since."""
_AWAITED_NS: Final = 3_000_000_000
"""Longest time to wait until the recorder shows a call. It is asked once a second."""
_QUIET_NS: Final = 250_000_000
"""If no call follows the newest one for this long, it may be the one that hangs. The recorder is then asked soon, since
the call counts as waiting only from the answer that shows its begin."""


class Tracked(NamedTuple):
    """A call, and what its record alone does not show.

    Attributes:
        gap_s: seconds from the end of the rank's previous call to the enqueueing of this one; None: unknown.
        device: times on the device, for a call whose end PyTorch's recorder shows; None for other calls. If set,
            ``record`` has the device's state and end, and ``record.waited_ns`` is when the device began the call
            (`POSTED`: not yet).
    """

    record: Record
    gap_s: float | None
    device: DeviceTimes | None = None

    def as_posted(self) -> Tracked:
        """Return the call as one for which no thread waits."""
        return self._replace(record=self.record._replace(waited_ns=POSTED))


class _Held(NamedTuple):
    """A held call. ``unconfirmed``: the ended call, until the watchdog retires it or a second answer shows its end."""

    item: Tracked
    since_ns: int
    unconfirmed: Tracked | None = None


class DeviceCalls:
    """The held calls, and the recorder's last answer.

    Attributes:
        is_read: True while the recorder is being read. Otherwise no further call is held.
        library: NCCL's version from PyTorch's recorder; "": unknown.
        connect: begins to read the recorder, if this is possible and was not tried just now; None: it is never read.
    """

    def __init__(self) -> None:
        self.is_read = False
        self.library = ""
        self.connect: Callable[[], None] | None = None
        self._is_over = False
        self._went_on: set[str] = set()
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._seen: OrderedDict[int, DeviceTimes] = OrderedDict()
        self._entries: dict[Key, Entry] = {}
        self._asked_ns = 0
        self._wall_offset_ns = 0
        self._shows_begins = False
        self._oldest: dict[str, tuple[int, int]] = {}
        self._has_news = False

    def holds(self, record: Record) -> bool:
        """Return True if a call that was just enqueued must be held."""
        if not self.is_read and self._held:
            self._went_on.add(record.group.id)
            self._has_news = True
        if record.state is not RecordState.UNKNOWN or record.kind not in (KIND_COLLECTIVE, KIND_P2P):
            return False
        if not is_of_device(record.signature.backend):
            return False
        if not self.is_read and self.connect is not None:
            self.connect()
        return self.is_read and len(self._held) < MAX_HELD

    def hold(self, item: Tracked) -> None:
        self._held[item.record.record_id] = _Held(item._replace(device=DeviceTimes()), time.monotonic_ns())

    def note(self, entries: Sequence[Entry], asked_ns: int, wall_offset_ns: int) -> None:
        """Take an answer of the recorder: its entries, oldest first, and the time of the request; see `Snapshot`."""
        self._entries = last_of_calls(entries)
        self._shows_begins = self._shows_begins or any(entry.began for entry in entries)
        self._oldest = {entry.name.backend: (entry.record, entry.created) for entry in reversed(entries)}
        self._asked_ns, self._wall_offset_ns = asked_ns, wall_offset_ns
        self._has_news = True

    def lose(self, *, is_over: bool = False) -> None:
        """Stop reading the recorder. Calls that its last answer showed in flight stay in flight until their group
        continues. The other held calls become unknown.

        Args:
            is_over: True if the rank has ended, so that the device begins no more of its calls.
        """
        self.is_read = False
        self._is_over |= is_over
        self._entries = {}
        self._has_news = bool(self._held)

    @property
    def are_any_held(self) -> bool:
        """True if calls are held, so that the recorder must be asked."""
        return bool(self._held)

    def is_new_unseen(self, now_ns: int) -> bool:
        """Return True if the newest call is older than `_QUIET_NS` and the recorder was not asked since then.

        ``now_ns``: monotonic.
        """
        held = next(reversed(self._held.values()), None)
        return held is not None and self._asked_ns < held.since_ns + _QUIET_NS <= now_ns

    def is_stale(self, now_ns: int) -> bool:
        """Return True if the last answer is so old that calls in flight may have ended since, and another will come.
        ``now_ns``: monotonic."""
        return self.is_read and bool(self._held) and now_ns - self._asked_ns >= FRESH_NS

    def settle(self) -> list[Tracked]:
        """Return the calls that have changed since the last time: ended calls, calls whose end will stay unknown, and
        calls that the device shows in flight. Only the last are still held."""
        if not self._has_news:
            return []
        self._has_news = False
        if self.is_read:
            self._went_on.clear()
        changed: list[Tracked] = []
        heads: dict[object, Entry] = {}
        for record_id, held in list(self._held.items()):
            now = self._look(held, heads)
            if now is None:
                unknown = held.item.record._replace(state=RecordState.UNKNOWN, waited_ns=None)
                now = held.item._replace(record=unknown, device=None)
            elif now is held.item or now == held.item:
                continue
            changed.append(now)
            if now.device is None or now.record.state is not RecordState.IN_FLIGHT:
                del self._held[record_id]
            else:
                self._held[record_id] = held._replace(item=now, unconfirmed=None)
            if now.device is not None:
                self._seen[record_id] = now.device
                if len(self._seen) > MAX_HELD:
                    self._seen.popitem(last=False)
        return changed

    def _look(self, held: _Held, heads: dict[object, Entry]) -> Tracked | None:
        """Return the call as it is now. None: nothing will become known about it.

        Args:
            heads: by the device's stream, the entry of the first call in flight among the calls before this one. This
                call is added.
        """
        item = held.item
        record = item.record
        if not self.is_read:
            if held.unconfirmed is not None:
                return held.unconfirmed
            if record.state is not RecordState.IN_FLIGHT or record.group.id in self._went_on:
                return None
            if item.device is None or self._is_over:
                return item
            return item._replace(device=item.device._replace(is_queued=False))  # the device may have begun it since
        entry = self._entries.get((record.group.name, record.kind == KIND_P2P, record.sequence_id))
        if entry is None or not self._is_of(entry, record):
            if self._asked_ns <= held.since_ns:
                return item
            if entry is None and self._was_never_there(record):
                return Tracked(record._replace(waited_ns=POSTED), item.gap_s, DeviceTimes(is_captured=True))
            return held.unconfirmed
        ended = self._monotonic(entry.ended, record)
        began = self._began(entry, item, ended)
        state = RecordState.COMPLETED if ended is not None else RecordState.IN_FLIGHT
        if ended is None and entry.is_retired:  # the call "has timed out" (FlightRecorder.hpp)
            state, ended = RecordState.FAILED, max(self._asked_ns, record.issued_ns)
        is_queued = state is not RecordState.COMPLETED and began is None and self._shows_begins
        if state is RecordState.IN_FLIGHT and not self._shows_begins:
            is_queued = heads.setdefault(entry.stream(record.group.is_serial), entry) is not entry
        seen = DeviceTimes(state, began, ended, entry.duration_s, is_queued, timeout_ms=entry.timeout_ms)
        record = record._replace(
            state=state, ended_ns=ended, waited_ns=seen.waited_ns, timeout_ms=entry.timeout_ms or record.timeout_ms
        )
        now = Tracked(record, item.gap_s, seen)
        if state is RecordState.COMPLETED and not entry.is_retired and held.unconfirmed is None:
            # The recorder enters a call before it records the call's end event, and an event that was not recorded
            # counts as over (CUDAEvent.h). The duration is also known only once the watchdog retires the call.
            self._held[record.record_id] = held._replace(unconfirmed=now)
            return item
        return now

    def _began(self, entry: Entry, item: Tracked, ended: int | None) -> int | None:
        """Return the latest time at which the device may have begun the call. The recorder shows no exact time.

        This is when the begin was first seen, or the end minus the duration, if that is earlier: the recorder is asked
        once a second, and notices an end within 0.1 s.
        """
        seen = item.device.began_ns if item.device is not None else None
        if ended is None:
            return self._monotonic(entry.began, item.record) if seen is None else seen
        if entry.duration_s is None:
            return seen
        computed = max(ended - round(entry.duration_s * 1e9), item.record.issued_ns)
        return computed if seen is None else min(seen, computed)

    def _was_never_there(self, record: Record) -> bool:
        """Return True if PyTorch's recorder never had the call: it has not overwritten any entry as new as the call.

        Source of the rule: ProcessGroupNCCL.cpp records a call when it enqueues the call. It does not enqueue calls
        while a CUDA graph is captured on the stream.
        """
        first, created = self._oldest.get(record.signature.backend, (1, 0))
        is_newer = created > 0 and created - self._wall_offset_ns < record.issued_ns - _EARLIER_NS
        return first == 0 or is_newer

    def _is_of(self, entry: Entry, record: Record) -> bool:
        # An entry that is too early belongs to an earlier group of this name. But of a call that was shown in flight,
        # the entry is known, and the wall clock may have been set since.
        is_known = record.state is RecordState.IN_FLIGHT
        if not is_known and entry.created - self._wall_offset_ns < record.issued_ns - _EARLIER_NS:
            return False
        return entry.ends_batch or family(entry.operation) == family(record.signature.operation)

    def _monotonic(self, wall_ns: int, record: Record) -> int | None:
        return max(wall_ns - self._wall_offset_ns, record.issued_ns) if wall_ns else None

    def release(self) -> list[Tracked]:
        """Release all calls, because all groups were destroyed and the next run has groups of the same names.

        Returns:
            The calls that the device does not show in flight.
        """
        left = [
            held.unconfirmed or held.item._replace(device=None)
            for held in self._held.values()
            if held.item.record.state is RecordState.UNKNOWN
        ]
        self._held.clear()
        return left

    def seen(self) -> dict[int, DeviceTimes]:
        """Return by record id what the recorder has shown of the last `MAX_HELD` calls."""
        return dict(self._seen)

    def undecided(self) -> Iterator[Tracked]:
        """Yield the held calls that may be in flight, oldest first. It is unknown whether a thread waits for them."""
        for held in self._held.values():
            if held.item.record.state is RecordState.UNKNOWN:
                yield self._posted(held)

    def is_awaited(self, record_id: int) -> bool:
        """Return True if the recorder was not asked since the call was held, so that its next answer will show it."""
        held = self._held.get(record_id)
        return held is not None and self._is_awaited(held)

    def current(self, item: Tracked) -> Tracked:
        """Return the call as the recorder shows it."""
        held = self._held.get(item.record.record_id)
        if held is None:
            return item
        return self._posted(held) if self._is_awaited(held) else held.item

    def _is_awaited(self, held: _Held) -> bool:
        is_young = time.monotonic_ns() - held.since_ns < _AWAITED_NS
        return held.item.record.state is RecordState.UNKNOWN and self._asked_ns <= held.since_ns and is_young

    def _posted(self, held: _Held) -> Tracked:
        """Return the call as one for which no thread waits.

        An awaited call is in flight here, not unknown: a call that is unknown on all members counts as ended.
        """
        state = RecordState.IN_FLIGHT if self._is_awaited(held) else RecordState.UNKNOWN
        return held.item._replace(record=held.item.record._replace(state=state, waited_ns=POSTED))

    def open_by_group(self) -> Mapping[str, int]:
        """Return by group id how many calls are held. The ring counts these as ended."""
        return Counter(held.item.record.group.id for held in self._held.values())
