"""Reads a ring file of a rank that runs (in its monitor), or of a rank that has ended.

All data is validated before use: a record may be half written or overwritten while it is read,
and the file may be damaged or malicious. Reading takes no lock and never disturbs the writer.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from otel_fr.ring import documents
from otel_fr.ring.activity_layout import READY, WORD_READY
from otel_fr.ring.activity_reader import ActivityReader
from otel_fr.ring.decision_layout import READY as DECISIONS_READY
from otel_fr.ring.decision_reader import DecisionReader
from otel_fr.ring.definition_reader import DefinitionReader
from otel_fr.ring.definitions import GroupDef
from otel_fr.ring.layout import (
    COUNTERS,
    EXCEPTION_ROOM,
    HEADER_SIZE,
    META_ROOM,
    ROW_GROUP,
    ROW_SIZE,
    SLOT,
    SLOT_BODY,
    SLOT_ENDED_WORD,
    SLOT_SIZE,
    SLOT_WAITED_WORD,
    STATUS_COUNTERS,
    STATUS_EXCEPTION,
    STATUS_META,
    STATUS_MONITOR_PID,
    STATUS_STATE,
    THREAD_ROOM,
    THREADS_SIZE,
    U32,
    UNPAIRED,
    WORD_GENERATION,
    WORD_HEAD,
    WORD_TAIL,
    WORD_UNTRACKED,
    DefinitionKind,
    Header,
    ProcessState,
    RecordState,
    RingFormatError,
    pid_namespace,
    process_start_ns,
    unpack_header,
)
from otel_fr.ring.records import GroupProgress, Record

_STATES: Final = tuple(RecordState)
"""States by value."""
MAIN_THREAD: Final = "MainThread"
_ROW: Final = struct.Struct("<8Q")


class RingReader:
    """Reads one ring file, of a running or an ended rank. Not thread safe.

    Attributes:
        torn: number of records that were damaged or half written.
        lost: number of records that were overwritten, or whose definitions were given up, before they were read.
            Each record is counted at most once as torn or lost, however often `records` runs.
        pid, pid_start_ns: the rank's process, and its start as in `process_start_ns`; 0: unknown.
        wall_offset_ns: wall clock minus monotonic clock when the file was created.
    """

    def __init__(self, mapping: mmap.mmap, header: Header) -> None:
        """Use `open`. ``header`` must have been checked."""
        self._map = mapping
        self._words = memoryview(mapping)[: len(mapping) & ~7].cast("Q")
        self._layout = header.layout
        self.pid = header.pid
        self.pid_start_ns = header.pid_start_ns
        self.wall_offset_ns = header.wall_offset_ns
        self.torn = 0
        self.lost = 0
        self._counted = 0
        self._definitions = DefinitionReader(mapping, header.layout)
        self._known_calls = self._definitions.of_calls

    @classmethod
    def open(cls, path: Path | str) -> RingReader:
        """Map a ring file.

        Raises:
            RingFormatError: the file is not a ring that can be read. The text says what is wrong.
            OSError: the file cannot be opened.
        """
        # O_NONBLOCK: opening a pipe of that name must not block. It has no effect on a file.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise RingFormatError("it is not a regular file, so it is not a ring")
            header = unpack_header(os.pread(handle, HEADER_SIZE, 0), found.st_size)
            mapping = mmap.mmap(handle, header.layout.file_size, mmap.MAP_SHARED, mmap.PROT_READ)
        except RingFormatError as error:
            raise RingFormatError(f"{path}: {error}") from None
        finally:
            os.close(handle)
        return cls(mapping, header)

    def close(self) -> None:
        """Close the mapping. Later calls raise ValueError."""
        self._words.release()
        self._map.close()

    def __enter__(self) -> RingReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- status

    @property
    def head(self) -> int:
        """Number of calls enqueued so far. The newest record has id ``head - 1``."""
        return self._words[WORD_HEAD]

    @property
    def generation(self) -> int:
        """Generation of the definitions."""
        return self._words[WORD_GENERATION]

    @property
    def capacity(self) -> int:
        """How many records the ring keeps."""
        return self._layout.capacity

    @property
    def untracked(self) -> int:
        """Number of live groups without a row in the progress table."""
        return self._words[WORD_UNTRACKED]

    @property
    def state(self) -> int:
        """`ProcessState` of the rank; RUNNING if the value is invalid."""
        value = self._words[(self._layout.status + STATUS_STATE) // 8]
        return ProcessState(value) if value <= max(ProcessState) else ProcessState.RUNNING

    @property
    def is_exiting(self) -> bool:
        """The rank's interpreter is ending."""
        return self.meta.get("exiting") is True

    @property
    def monitor_pid(self) -> int:
        """Process id of the rank's monitor; 0: none."""
        return self._words[(self._layout.status + STATUS_MONITOR_PID) // 8]

    def has_ended(self) -> bool:
        """Return True if the rank's process is known to have ended."""
        space = pid_namespace()
        if not space or self.meta.get("pid_namespace") != space:
            return False  # in this namespace, the pid may belong to another process
        started = process_start_ns(self.pid)
        return started is None or (self.pid_start_ns > 0 and started != self.pid_start_ns)

    @property
    def counters(self) -> dict[str, int]:
        """The writer's counters, by name."""
        start = (self._layout.status + STATUS_COUNTERS) // 8
        return {name: self._words[start + index] for index, name in enumerate(COUNTERS)}

    @property
    def meta(self) -> dict[str, object]:
        """The values that describe the rank; empty if both copies are damaged."""
        found = [self._document(start, META_ROOM) for start in STATUS_META]
        # Both copies look invalid if the writer replaced both meanwhile. Then read them again.
        if not any(found):
            found = [self._document(start, META_ROOM) for start in STATUS_META]
        valid = [document for document in found if document is not None]
        return max(valid, key=lambda document: document[0])[1] if valid else {}

    @property
    def first_record(self) -> int:
        """Id of the first record of the present run. In earlier records, the process may have had another rank."""
        found = self.meta.get("first_record")
        return found if isinstance(found, int) else 0

    @property
    def exception(self) -> dict[str, object] | None:
        """The main thread's uncaught exception, which ends the rank; None: none was recorded."""
        found = self._document(STATUS_EXCEPTION, EXCEPTION_ROOM)
        return None if found is None else found[1]

    @property
    def thread_exceptions(self) -> list[dict[str, object]]:
        """The recorded uncaught exceptions of other threads, oldest first. They do not end the rank."""
        start = self._layout.threads
        places = range(start, start + THREADS_SIZE, THREAD_ROOM)
        found = [documents.unpack(self._map[place : place + THREAD_ROOM]) for place in places]
        return [values for _, values in sorted((item for item in found if item is not None), key=lambda item: item[0])]

    @property
    def activity(self) -> ActivityReader | None:
        """Heartbeats, sections and steps; None: the section is not complete."""
        start = self._layout.activity
        if self._words[start // 8 + WORD_READY] != READY:
            return None
        return ActivityReader(self._map, self._words, start)

    @property
    def decisions(self) -> DecisionReader | None:
        """Decisions of the program; None: the section is not complete."""
        start = self._layout.decisions
        if self._words[start // 8] != DECISIONS_READY:
            return None
        return DecisionReader(self._map, self._words, start)

    def _document(self, start: int, room: int) -> tuple[int, dict[str, object]] | None:
        begin = self._layout.status + start
        return documents.unpack(self._map[begin : begin + room])

    # ---- records

    def records(self, since: int = 0) -> Iterator[Record]:
        """Yield every valid record with ``record_id >= since`` that is still in the ring, oldest first.

        The last one is the record that was the newest when the iteration began.
        """
        head = self.head
        capacity = self._layout.capacity
        first = max(since, head - capacity, self._words[WORD_TAIL] - 1, 0)
        # An impossible tail, in a damaged file, must not hide the records.
        if first > head:
            first = max(since, head - capacity, 0)
        self._count(since, first, lost=True)
        for record_id in range(first, head):
            record = self._record(record_id)
            if record is None:
                self._count(record_id, record_id + 1, lost=self._overwritten(record_id), torn=True)
                continue
            if record_id >= self._counted:
                self._counted = record_id + 1
            yield record

    def ended(self, record_id: int) -> tuple[RecordState, int | None, int | None] | None:
        """Return the present (state, ended_ns, waited_ns) of a record, or None if it is no longer in the ring.

        This takes much less time than reading the record.
        """
        if not 0 <= record_id < self.head:
            return None
        ticket = record_id + 1
        word = self._layout.slots_start // 8 + ticket % self._layout.slots * (SLOT_SIZE // 8)
        found = self._words[word]
        waited = self._words[word + SLOT_WAITED_WORD]
        value = self._words[word + SLOT_ENDED_WORD]
        if found != ticket or self.head - record_id > self._layout.capacity:
            return None
        return _STATES[value & 3], value >> 2 or None, waited or None

    def _overwritten(self, record_id: int) -> bool:
        return self.head - record_id > self._layout.capacity or self._words[WORD_TAIL] > record_id + 1

    def _count(self, start: int, stop: int, *, lost: bool, torn: bool = False) -> None:
        """Count the records from ``start`` to ``stop`` as lost or torn, unless an earlier call has counted them."""
        fresh = stop - max(start, self._counted)
        if fresh <= 0:
            return
        self._counted = stop
        if lost:
            self.lost += fresh
        elif torn:
            self.torn += fresh

    def _record(self, record_id: int) -> Record | None:
        """Return the record, or None if it is torn, overwritten, or refers to a missing definition."""
        ticket = record_id + 1
        start = self._layout.slots_start + ticket % self._layout.slots * SLOT_SIZE
        data = self._map[start : start + SLOT_SIZE]
        # Read this word separately, with one load: the 96 bytes above may be copied in any order.
        ended = self._words[start // 8 + SLOT_ENDED_WORD]
        fields = SLOT.unpack(data)
        of, issued, coll_seq, p2p_seq, op_id, group_ref, sig_ref, site_ref, generation, pair_index = fields[:10]
        kind, flags, _, timeout_ms, thread_ref, crc, _, waited, _ = fields[10:]
        if of != ticket or crc != zlib.crc32(data[: SLOT_BODY.size]):
            return None
        # This shows that the bytes were not overwritten while they were copied.
        if self.head - record_id > self._layout.capacity:
            return None
        refs = (generation, group_ref, sig_ref, site_ref, thread_ref)
        known = self._known_calls.get(refs) or self._definitions.of_call(*refs)
        if known is None:
            return None
        group, signature, site, thread = known
        if pair_index == UNPAIRED:
            signature, pair_index = self._definitions.from_any(signature), p2p_seq
        return Record(
            record_id=record_id,
            issued_ns=issued,
            waited_ns=waited or None,
            ended_ns=ended >> 2 or None,
            state=_STATES[ended & 3],
            coll_seq=coll_seq,
            p2p_seq=p2p_seq,
            op_id=op_id,
            pair_index=pair_index,
            kind=kind,
            flags=flags,
            timeout_ms=timeout_ms,
            thread=thread.name,
            group=group,
            signature=signature,
            site=site,
            thread_ident=thread.ident,
        )

    # ---- groups

    def groups(self) -> list[GroupProgress]:
        """Return the progress of every live group that has a row, in the order of the rows."""
        found: list[GroupProgress] = []
        for row in range(self._layout.progress_rows):
            start = self._layout.progress + row * ROW_SIZE
            # While the row is read, its group may change or the definition may move. Then read the row again.
            for _ in range(4):
                word = self._words[start // 8 + ROW_GROUP]
                if word == 0:
                    break
                group = self._definitions.find(word >> 32, DefinitionKind.GROUP, word & U32)
                values = _ROW.unpack(self._map[start : start + ROW_SIZE])
                if isinstance(group, GroupDef) and self._words[start // 8 + ROW_GROUP] == word:
                    found.append(GroupProgress(group, *values[1:]))
                    break
        return found
