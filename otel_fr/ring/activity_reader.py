"""Reads the activity section of a ring, of a running or an ended rank. All data is checked before use."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

from otel_fr.ring.activity_layout import (
    ENDED_ROWS,
    ENDED_START,
    FLAG_AUTOMATIC,
    FLAG_CONTEXT,
    FLAG_FAILED,
    FLAG_LEFT,
    KIND_MASK,
    KIND_SECTION,
    KIND_STEP,
    MAX_NAME,
    NAME_SIZE,
    NAMES,
    NAMES_START,
    OPEN_ROWS,
    OPEN_START,
    OTHER,
    ROW,
    ROW_SIZE,
    WORD_ENDED,
    WORD_FIRST_LIMIT,
    WORD_HEARTBEAT,
    WORD_HEARTBEAT_LIMIT,
    WORD_HEARTBEATS,
    WORD_LAST_END,
    WORD_MISUSES,
    WORD_OUTSIDE_LIMIT,
    WORD_STEP,
    WORD_UNTRACKED,
    WORD_WATCHED_SINCE,
)
from otel_fr.ring.names import read_name

LATE_ROWS = 64
"""A missing row counts as lost once this many later rows exist: its thread was interrupted while it wrote the row."""
_TRIES = 4
"""Attempts to read a row that changes while it is read."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A section or step. Times are monotonic ns of the rank's machine.

    Attributes:
        number: unique in the process; increases with each section or step that begins.
        is_step: True for a step, False for a section.
        name: the section's name; "" for a step.
        thread, native_id: `threading.get_ident` and kernel thread id of the thread that began it.
        ended_ns: when it ended; None: not yet.
        timeout_ms: timeout that the program gave; 0: none.
        parent: number of the section or step in which it began; 0: none.
        root: number of the outermost section or step around it, or its own.
        step: for a step, its number as a training step; for a section, the number of the step in which it began.
        is_failed: True if an exception ended it.
        is_left: True if the program did not end it itself.
        is_automatic: True for a step that the hook on optimizers counted.
        user: for a step, trace id (16 bytes) and span id (8 bytes) of the program's own span, if there is one.
    """

    number: int
    is_step: bool
    name: str
    thread: int
    native_id: int
    began_ns: int
    ended_ns: int | None
    timeout_ms: int
    parent: int
    root: int
    step: int
    is_failed: bool = False
    is_left: bool = False
    is_automatic: bool = False
    user: bytes | None = None


@dataclass(frozen=True, slots=True)
class Beats:
    """Heartbeats, and the limits that the program gives. Times are in monotonic ns, limits in ms; 0: none.

    Attributes:
        count: number of heartbeats.
        last_ns: time of the newest heartbeat.
        limit_ms: most time between two heartbeats.
        first_limit_ms: most time from ``since_ns`` to the first heartbeat.
        outside_limit_ms: most time without an open section.
        last_end_ns: when a section last ended.
    """

    count: int
    last_ns: int
    limit_ms: int
    first_limit_ms: int
    since_ns: int
    outside_limit_ms: int
    last_end_ns: int


class ActivityReader:
    """Reads the section of one ring."""

    def __init__(self, mapping: mmap.mmap, words: memoryview, start: int) -> None:
        """``words``: the mapping as 8-byte words. ``start``: the section's offset in the file."""
        self._map = mapping
        self._words = words
        self._start = start
        self._first = start // 8
        self._names: dict[int, str] = {0: OTHER}

    def _word(self, index: int) -> int:
        value: int = self._words[self._first + index]
        return value

    @property
    def misuses(self) -> int:
        """Number of the program's wrong calls."""
        return self._word(WORD_MISUSES)

    @property
    def untracked(self) -> int:
        """Number of sections without a row, because too many were open when they began."""
        return self._word(WORD_UNTRACKED)

    @property
    def ended_count(self) -> int:
        """Number of sections and steps that have ended."""
        return self._word(WORD_ENDED)

    def beats(self) -> Beats:
        """Return the present heartbeats and limits."""
        return Beats(
            count=self._word(WORD_HEARTBEATS),
            last_ns=self._word(WORD_HEARTBEAT),
            limit_ms=self._word(WORD_HEARTBEAT_LIMIT),
            first_limit_ms=self._word(WORD_FIRST_LIMIT),
            since_ns=self._word(WORD_WATCHED_SINCE),
            outside_limit_ms=self._word(WORD_OUTSIDE_LIMIT),
            last_end_ns=self._word(WORD_LAST_END),
        )

    def step(self) -> Activity | None:
        """Return the step that began last. None: no step has begun, or it could not be read now."""
        last = WORD_STEP + 1 + ROW.size // 8
        for _ in range(_TRIES):
            number = self._word(last)
            found = self._body(self._start + (WORD_STEP + 1) * 8) if number else None
            if number == 0:
                return None
            if found is not None and found.is_step and found.number == number == self._word(WORD_STEP):
                return found
        return None

    def open_sections(self) -> list[Activity]:
        """Return the open sections in the order in which they began."""
        found: list[Activity] = []
        for row in range(OPEN_ROWS):
            at = self._start + OPEN_START + row * ROW_SIZE
            for _ in range(_TRIES):
                number = self._words[at // 8]
                if number == 0:
                    break
                section = self._body(at + 8)
                if section is not None and self._words[at // 8] == number == section.number:
                    found.append(section)
                    break
        return sorted(found, key=lambda section: section.number)

    def ended(self, since: int) -> tuple[list[Activity], int, int]:
        """Return sections and steps that have ended.

        Args:
            since: the number returned by the previous call; 0 for the first call.

        Returns:
            The sections and steps that ended since then, oldest first; the number to pass next time; and how many were
            lost, because they were overwritten or damaged.
        """
        head = self.ended_count
        found: list[Activity] = []
        first = max(since, head - ENDED_ROWS)
        lost = first - since
        for ticket in range(first + 1, head + 1):
            at = self._start + ENDED_START + ticket % ENDED_ROWS * ROW_SIZE
            before = self._words[at // 8]
            item = self._body(at + 8) if before == ticket else None
            if item is not None and self._words[at // 8] == ticket:
                found.append(item)
            elif before < ticket and head - ticket < LATE_ROWS:
                return found, ticket - 1, lost  # the row is being written
            else:
                lost += 1
        return found, max(head, since), lost

    def _body(self, at: int) -> Activity | None:
        number, kind, name, thread, native, began, ended, timeout, parent, root, step = ROW.unpack_from(self._map, at)
        if kind & KIND_MASK not in (KIND_SECTION, KIND_STEP) or number == 0:
            return None
        user = None
        if kind & KIND_MASK == KIND_STEP and kind & FLAG_CONTEXT:
            user = struct.pack(">QQQ", name, timeout, parent)
            timeout = parent = 0
        return Activity(
            number=number,
            is_step=kind & KIND_MASK == KIND_STEP,
            name="" if kind & KIND_MASK == KIND_STEP else self._name(name),
            thread=thread,
            native_id=native,
            began_ns=began,
            ended_ns=ended or None,
            timeout_ms=timeout,
            parent=parent,
            root=root,
            step=step,
            is_failed=bool(kind & FLAG_FAILED),
            is_left=bool(kind & FLAG_LEFT),
            is_automatic=bool(kind & FLAG_AUTOMATIC),
            user=user,
        )

    def _name(self, ref: int) -> str:
        found = self._names.get(ref)
        if found is not None:
            return found
        if not 0 < ref <= NAMES:
            return OTHER
        at = self._start + NAMES_START + (ref - 1) * NAME_SIZE
        name = read_name(self._map, self._words[at // 8], at + 8, MAX_NAME)
        if name is None:
            return OTHER
        self._names[ref] = name
        return name
