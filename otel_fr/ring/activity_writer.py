"""Writes the ring's activity section: heartbeats, steps, and open sections of the program.

Nothing here locks, waits, or calls the operating system. Threads may write at the same time: each open section has its
own row, and rows and tickets are allocated by operations that the interpreter does not interrupt.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable

from otel_fr.ring.activity_layout import (
    ENDED_ROWS,
    ENDED_START,
    MAX_NAME,
    NAME_SIZE,
    NAMES,
    NAMES_START,
    OPEN_ROWS,
    OPEN_START,
    READY,
    ROW,
    ROW_SIZE,
    WORD_ENDED,
    WORD_FIRST_LIMIT,
    WORD_HEARTBEAT_LIMIT,
    WORD_HEARTBEATS,
    WORD_LAST_END,
    WORD_MISUSES,
    WORD_NAMES,
    WORD_OUTSIDE_LIMIT,
    WORD_READY,
    WORD_STEP,
    WORD_UNTRACKED,
    WORD_WATCHED_SINCE,
)
from otel_fr.ring.names import name_word, text_bytes

Body = tuple[int, int, int, int, int, int, int, int, int, int, int]
"""The fields of `activity_layout.ROW`."""

NO_ROW = -1

_KIND: int = 2
_ENDED: int = 7
"""Index of these words from the start of a row."""

_pack_into = ROW.pack_into


class ActivityWriter:
    """Writes the section. Not for use after a fork.

    Attributes:
        names: name -> reference.
    """

    __slots__ = (
        "_beats",
        "_ended",
        "_ended_at",
        "_first",
        "_free",
        "_last_end",
        "_map",
        "_next_beat",
        "_next_name",
        "_next_ticket",
        "_words",
        "names",
    )

    def __init__(self, mapping: mmap.mmap, start: int) -> None:
        """``start``: the section's offset in the file. The section must be all zeros."""
        self._map = mapping
        self._words = memoryview(mapping).cast("Q")
        self._first = start // 8
        self._ended_at = start + ENDED_START
        self._free = [start + OPEN_START + row * ROW_SIZE for row in range(OPEN_ROWS - 1, -1, -1)]
        self._next_ticket: Callable[[], int] = itertools.count(1).__next__
        self._next_beat: Callable[[], int] = itertools.count(1).__next__
        self._next_name: Callable[[], int] = itertools.count(0).__next__
        self._beats = self._first + WORD_HEARTBEATS
        self._ended = self._first + WORD_ENDED
        self._last_end = self._first + WORD_LAST_END
        self.names: dict[str, int] = {}
        self._words[self._first + WORD_READY] = READY

    def close(self) -> None:
        """Release the mapping. Later calls raise ValueError."""
        self._words.release()

    def heartbeat(self, now_ns: int) -> None:
        """Record a heartbeat. ``now_ns`` is monotonic."""
        at = self._beats
        self._words[at + 1] = now_ns
        self._words[at] = self._next_beat()

    def reference(self, name: str) -> int:
        """Return the reference of a name, or 0 if the table is full."""
        ref = self.names.get(name)
        if ref is not None:
            return ref
        if len(self.names) >= NAMES:
            return 0
        index = self._next_name()
        if index >= NAMES:  # two threads may have used two indexes for one new name
            return 0
        text = text_bytes(name, MAX_NAME)
        at = self._first * 8 + NAMES_START + index * NAME_SIZE
        self._map[at + 8 : at + 8 + len(text)] = text
        self._words[at // 8] = name_word(text)
        self._words[self._first + WORD_NAMES] = index + 1
        return self.names.setdefault(name, index + 1)

    def open(self, body: Body) -> int:
        """Write the row of an open section. Return the row's offset in the file, or `NO_ROW` if the table is full."""
        try:
            row = self._free.pop()
        except IndexError:
            self._words[self._first + WORD_UNTRACKED] += 1
            return NO_ROW
        _pack_into(self._map, row + 8, *body)
        self._words[row >> 3] = body[0]
        return row

    def end(self, row: int, body: Body, ended_ns: int, flags: int = 0) -> None:
        """Record that a section has ended.

        Args:
            row, body: result and argument of `open`.
            flags: flags to add to the body's flags.
        """
        words = self._words
        words[self._last_end] = ended_ns
        if row == NO_ROW:
            self.log(body, ended_ns, flags)
            return
        # Like `log`, but copies the row, which takes half of the time.
        mapping = self._map
        ticket = self._next_ticket()
        at = self._ended_at + ticket % ENDED_ROWS * ROW_SIZE
        word = at >> 3
        words[word] = 0
        mapping[at + 8 : at + ROW_SIZE] = mapping[row + 8 : row + ROW_SIZE]
        words[word + _ENDED] = ended_ns
        if flags:
            words[word + _KIND] = body[1] | flags
        words[word] = ticket
        words[self._ended] = ticket
        word = row >> 3
        if words[word] == body[0]:
            words[word] = 0
            self._free.append(row)

    def free(self, row: int, number: int) -> None:
        """Free a row, unless another section has it now. ``number``: number of the section that had the row."""
        if row != NO_ROW and self._words[row >> 3] == number:
            self._words[row >> 3] = 0
            self._free.append(row)

    def log(self, body: Body, ended_ns: int, flags: int = 0) -> None:
        """Record a section or step that has ended, in place of the oldest one. ``flags`` are added to the body's."""
        ticket = self._next_ticket()
        at = self._ended_at + ticket % ENDED_ROWS * ROW_SIZE
        words, word = self._words, at >> 3
        # A reader of the old row notices that it is gone, and never sees a mixture.
        words[word] = 0
        _pack_into(self._map, at + 8, *body)
        words[word + _ENDED] = ended_ns
        if flags:
            words[word + _KIND] = body[1] | flags
        words[word] = ticket
        words[self._ended] = ticket

    def set_step(self, body: Body) -> None:
        """Record the step that has begun."""
        at = self._first + WORD_STEP
        words = self._words
        words[at] = body[0]
        _pack_into(self._map, (at + 1) * 8, *body)
        words[at + 1 + ROW.size // 8] = body[0]

    def set_limits(self, heartbeat_ms: int, first_ms: int, since_ns: int, outside_ms: int) -> None:
        """Record limits that the program gives; 0: none.

        Args:
            heartbeat_ms: most time between two heartbeats.
            first_ms: most time from ``since_ns`` to the first heartbeat.
            since_ns: monotonic.
            outside_ms: most time without an open section, from the end of the last section.
        """
        words, first = self._words, self._first
        words[first + WORD_HEARTBEAT_LIMIT] = heartbeat_ms
        words[first + WORD_FIRST_LIMIT] = first_ms
        words[first + WORD_WATCHED_SINCE] = since_ns
        words[first + WORD_OUTSIDE_LIMIT] = outside_ms

    def stop_watching(self) -> None:
        """Forget limits and heartbeats. From now on, no heartbeat is due."""
        self.set_limits(0, 0, 0, 0)
        self._words[self._beats + 1] = 0
        self._words[self._last_end] = 0

    def misuse(self) -> None:
        """Count a wrong call of the program."""
        self._words[self._first + WORD_MISUSES] += 1
