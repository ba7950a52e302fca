"""The ring file's fixed parts: offsets, packers, enums, errors (docs/reference/ring-format.md describes them).

Everything is little endian, and every integer lies at a multiple of its size, so that a compiled
writer can use plain loads and stores.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from otel_fr.ring.activity_layout import ACTIVITY_SIZE
from otel_fr.ring.decision_layout import DECISIONS_SIZE

MAGIC: Final = b"OTELFRRB"
VERSION: Final = 1

KIND_COLLECTIVE: Final = 0
KIND_P2P: Final = 1
KIND_MONITORED: Final = 2
KIND_GROUP: Final = 3
"""Calls that create a group, and calls that destroy the group of their record."""

HEADER_SIZE: Final = 4096
STATUS_SIZE: Final = 16 * 1024
THREAD_DOCUMENTS: Final = 4
THREAD_ROOM: Final = 4096
THREADS_SIZE: Final = THREAD_DOCUMENTS * THREAD_ROOM
"""Size of the area after the status area, for exceptions of threads."""
_BEFORE_PROGRESS: Final = STATUS_SIZE + THREADS_SIZE + ACTIVITY_SIZE + DECISIONS_SIZE
PROGRESS_ROWS: Final = 256
ROW_SIZE: Final = 64
SLOT_SIZE: Final = 96
MIN_HALF_SIZE: Final = 256 * 1024
HALF_BYTES_PER_RECORD: Final = 64
MAX_CAPACITY: Final = 1 << 24
"""Most records of a ring. This limits how much a reader scans if the file is damaged."""

# Header: the constant part, its crc, and a flag: the file is complete.
HEADER: Final = struct.Struct("<8sIIQQQQQQQQQqQQ")
HEADER_CRC: Final = HEADER.size
HEADER_COMPLETE: Final = HEADER.size + 8

# Header: the part that changes, as indexes of 8-byte words from the start of the file.
WORD_HEAD: Final = 128
WORD_TAIL: Final = 129
WORD_GENERATION: Final = 130
WORD_USED: Final = 131
WORD_UNTRACKED: Final = 132

# Status area, as offsets from its start.
STATUS_STATE: Final = 0
STATUS_MONITOR_PID: Final = 8
STATUS_COUNTERS: Final = 16
STATUS_META: Final = (256, 256 + 4032)
META_ROOM: Final = 4032
EARLIER_RUNS: Final = "earlier_runs"
"""Key of the meta: the values that identified the process in its earlier runs, oldest first."""
STATUS_EXCEPTION: Final = 256 + 2 * 4032
EXCEPTION_ROOM: Final = STATUS_SIZE - STATUS_EXCEPTION
DOCUMENT: Final = struct.Struct("<IIQ")
"""Precedes each JSON text of the status area: length, crc32 (of number and text), number (from 1)."""

COUNTERS: Final = ("hook_errors", "dropped", "truncated_definitions", "flips")
"""The counters of `RingWriter.count`, in the order of the file. There is room for 30."""

# Progress row: indexes of its 8-byte words.
ROW_GROUP, ROW_ENQUEUED, ROW_COMPLETED, ROW_P2P, ROW_ISSUED, ROW_ENDED, ROW_LAST_ISSUE, ROW_LAST_END = range(8)

# Slot: the part under the crc, then crc + pad, waited, ended.
SLOT_BODY: Final = struct.Struct("<QqQQQIIIIIBBHII")
SLOT_TAIL: Final = struct.Struct("<IIqQ")
SLOT: Final = struct.Struct(SLOT_BODY.format + SLOT_TAIL.format[1:])
SLOT_WAITED_WORD: Final = 10
SLOT_ENDED_WORD: Final = 11
POSTED: Final = 1
"""Value of ``waited`` if only ``wait()`` reports the end of the call, and no thread waits for it yet."""

# Definition: payload length, generation, kind, crc32 (of the twelve bytes before it and the payload).
DEFINITION: Final = struct.Struct("<IIII")
DEFINITION_PREFIX: Final = struct.Struct("<III")
HALF_START: Final = 8
"""A half begins with its generation, so that no definition has reference 0, which means "none"."""
MAX_DEFINITION: Final = 64 * 1024

U32: Final = 0xFFFFFFFF
UNPAIRED: Final = U32
"""Pair index of a receive whose message is unknown, because a receive from any source came before it."""


class RecordState(IntEnum):
    """State of a call. UNKNOWN: the backend does not report when it ends."""

    IN_FLIGHT = 0
    COMPLETED = 1
    FAILED = 2
    UNKNOWN = 3


class ProcessState(IntEnum):
    """State of the rank's process: running, exiting normally, ended cleanly."""

    RUNNING = 0
    EXITING = 1
    CLEAN = 2


class DefinitionKind(IntEnum):
    """What a definition describes."""

    GROUP = 1
    SIGNATURE = 2
    SITE = 3
    THREAD = 4


class StaleGeneration(Exception):  # noqa: N818 - the caller interns again; not a failure
    """The references passed to `RingWriter.append` belong to an earlier generation: look them up again and retry."""


class RingFormatError(Exception):
    """The file cannot be read as a ring; the text says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the sections of a file, in bytes from its start."""

    capacity: int
    slots: int
    half_size: int
    status: int
    progress: int
    progress_rows: int
    definitions: int
    slots_start: int
    file_size: int

    @classmethod
    def of(cls, capacity: int) -> Layout:
        """Return the layout of a new file.

        It has one slot more than the capacity, so that the slot being written never holds a valid record.

        Raises:
            ValueError: capacity is not in 1..MAX_CAPACITY.
        """
        if not 1 <= capacity <= MAX_CAPACITY:
            raise ValueError(f"ring capacity must be 1 to {MAX_CAPACITY} records, not {capacity}")
        half_size = max(MIN_HALF_SIZE, HALF_BYTES_PER_RECORD * capacity)
        progress = HEADER_SIZE + _BEFORE_PROGRESS
        definitions = progress + PROGRESS_ROWS * ROW_SIZE
        slots_start = definitions + 2 * half_size
        slots = capacity + 1
        return cls(
            capacity=capacity,
            slots=slots,
            half_size=half_size,
            status=HEADER_SIZE,
            progress=progress,
            progress_rows=PROGRESS_ROWS,
            definitions=definitions,
            slots_start=slots_start,
            file_size=slots_start + slots * SLOT_SIZE,
        )

    @property
    def threads(self) -> int:
        """Start of the exceptions of threads."""
        return self.status + STATUS_SIZE

    @property
    def activity(self) -> int:
        """Start of the activity section."""
        return self.threads + THREADS_SIZE

    @property
    def decisions(self) -> int:
        """Start of the section of decisions."""
        return self.activity + ACTIVITY_SIZE

    def half(self, generation: int) -> int:
        """Start of the half that holds the definitions of ``generation``."""
        return self.definitions + (generation & 1) * self.half_size


def own_header(layout: Layout) -> bytes:
    """Return the constant header, with its crc, of a file that this process writes from now on."""
    pid = os.getpid()
    head = HEADER.pack(
        MAGIC,
        VERSION,
        HEADER_SIZE,
        layout.capacity,
        layout.slots,
        layout.half_size,
        layout.status,
        layout.progress,
        layout.progress_rows,
        layout.definitions,
        layout.slots_start,
        layout.file_size,
        wall_offset_ns(),
        pid,
        process_start_ns(pid) or 0,
    )
    return head + struct.pack("<II", zlib.crc32(head), 0)


@dataclass(frozen=True, slots=True)
class Header:
    """The constant header of a file, after it was checked."""

    layout: Layout
    wall_offset_ns: int
    pid: int
    pid_start_ns: int


_UNFINISHED: Final = "the ring is still being created, or its creation was interrupted: try again, or remove it"


def unpack_header(data: bytes, size: int) -> Header:
    """Check the first bytes of a file of ``size`` bytes.

    Args:
        data: at least the first `HEADER_COMPLETE` + 8 bytes.

    Raises:
        RingFormatError: the file is not a ring, has another version, or is truncated, unfinished or damaged.
    """
    if len(data) < HEADER_COMPLETE + 8 or size < HEADER_SIZE:
        raise RingFormatError(f"the file has {size} bytes, too few for a ring: it was truncated or is not a ring")
    fields = HEADER.unpack_from(data)
    magic, version, header_size, capacity, slots, half_size = fields[:6]
    status, progress, rows, definitions, slots_start, file_size, wall, pid, start = fields[6:]
    (complete,) = struct.unpack_from("<Q", data, HEADER_COMPLETE)
    if magic != MAGIC:
        if complete == 0 and not any(data[:HEADER_COMPLETE]):
            raise RingFormatError(_UNFINISHED)
        raise RingFormatError(f"the file begins with {magic!r}, not {MAGIC!r}: it is not an otel-fr ring")
    if version != VERSION:
        raise RingFormatError(
            f"the ring has format version {version}, this otel-fr reads {VERSION}: use the otel-fr that wrote it"
        )
    (crc,) = struct.unpack_from("<I", data, HEADER_CRC)
    if zlib.crc32(data[: HEADER.size]) != crc:
        raise RingFormatError("the ring's header does not match its checksum: the file is damaged")
    if complete != 1:
        raise RingFormatError(_UNFINISHED)
    if file_size > size:
        raise RingFormatError(f"the ring should have {file_size} bytes and has {size}: it was truncated")
    sound = (
        header_size == HEADER_SIZE
        and 1 <= capacity <= MAX_CAPACITY
        and slots == capacity + 1
        and rows <= 1 << 16
        and HALF_START < half_size <= HALF_BYTES_PER_RECORD * MAX_CAPACITY
        and all(offset % 8 == 0 for offset in (half_size, status, progress, definitions, slots_start))
        and status >= HEADER_SIZE
        and status + _BEFORE_PROGRESS <= progress
        and progress + rows * ROW_SIZE <= definitions
        and definitions + 2 * half_size <= slots_start
        and slots_start + slots * SLOT_SIZE <= file_size
    )
    if not sound:
        raise RingFormatError("the sections named in the ring's header do not fit the file: the file is damaged")
    layout = Layout(capacity, slots, half_size, status, progress, rows, definitions, slots_start, file_size)
    return Header(layout, wall, pid, start)


def process_start_ns(pid: int) -> int | None:
    """Return when a process started, in ns since boot (to 10 ms), or None if it does not exist.

    A pid may be reused, but pid and start time together identify one process.
    """
    state = process_state(pid)
    return None if state is None else state.started_ns


class ProcessNow(NamedTuple):
    """The present state of a process: its ``letter`` (proc_pid_stat(5)), and its start as in `process_start_ns`."""

    letter: str
    started_ns: int


def process_state(pid: int) -> ProcessNow | None:
    """Return the state of a process, or None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        # The second field is the command in parentheses, and may contain anything. The start time is the 22nd field.
        fields = stat[stat.rindex(b")") + 2 :].split()
        ticks = int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    return ProcessNow(fields[0].decode("ascii", "replace"), ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def pid_namespace() -> str:
    """Return the pid namespace of this process, or "" if it is unknown. Pids are unique only within a namespace.

    Two containers on one machine may have the same host name (pid_namespaces(7)).
    """
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def wall_offset_ns() -> int:
    """Return the present difference between wall clock and monotonic clock, in ns."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    return wall - (before + time.monotonic_ns()) // 2
