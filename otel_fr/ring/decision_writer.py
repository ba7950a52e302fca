"""Writes the ring's section of decisions: how many were made under each name, and the changes of their values.

Nothing here locks, waits, or calls the operating system.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from zlib import crc32

from otel_fr.ring.decision_layout import (
    MAX_NAME,
    MAX_TEXT,
    NAME_SIZE,
    NAMES,
    NAMES_START,
    READY,
    ROW,
    ROW_SIZE,
    ROWS,
    ROWS_START,
    WORD_FAILURES,
    WORD_NAMES,
    WORD_NEWEST,
    WORD_READY,
    WORD_UNTRACKED,
)
from otel_fr.ring.names import name_word, text_bytes

_pack_into = ROW.pack_into


class DecisionWriter:
    """Writes the section. Not for use after a fork."""

    __slots__ = ("_first", "_map", "_newest_at", "_next_ticket", "_rows_at", "_words")

    def __init__(self, mapping: mmap.mmap, start: int) -> None:
        """``start``: the section's offset in the file. The section must be all zeros."""
        self._map = mapping
        self._words = memoryview(mapping).cast("Q")
        self._first = start // 8
        self._rows_at = start + ROWS_START
        self._newest_at = self._first + WORD_NEWEST
        self._next_ticket: Callable[[], int] = itertools.count(1).__next__
        self._words[self._first + WORD_READY] = READY

    def close(self) -> None:
        """Release the mapping. Later calls raise ValueError."""
        self._words.release()

    def add_name(self, index: int, name: str) -> int:
        """Write the name number ``index`` (from 0). Return the word that counts its decisions; -1: no room."""
        if index >= NAMES:
            self._words[self._first + WORD_UNTRACKED] += 1
            return -1
        text = text_bytes(name, MAX_NAME)
        at = self._first * 8 + NAMES_START + index * NAME_SIZE
        self._map[at + 16 : at + 16 + len(text)] = text
        self._words[at // 8] = name_word(text)
        self._words[self._first + WORD_NAMES] = index + 1
        return at // 8 + 1

    def count_failure(self) -> None:
        """Count a decision that could not be recorded."""
        self._words[self._first + WORD_FAILURES] += 1

    def count(self, word: int, number: int) -> None:
        """Set the number of decisions of the name for which `add_name` returned ``word``."""
        self._words[word] = number

    def change(self, index: int, number: int, step: int, now_ns: int, value: str) -> None:
        """Record that a decision's value differs from the previous decision of its name.

        Args:
            index: index of the name.
            number: number of the decision under this name, from 1.
            step: number of the training step; -1: none.
            now_ns: monotonic.
            value: the value as text.
        """
        raw = value.encode("utf-8", "backslashreplace")
        text = raw if len(raw) <= MAX_TEXT else text_bytes(value, MAX_TEXT)
        ticket = self._next_ticket()
        at = self._rows_at + ticket % ROWS * ROW_SIZE
        words, word = self._words, at >> 3
        # A reader of the old row notices that it is gone, and never sees a mixture.
        words[word] = 0
        _pack_into(self._map, at + 8, number, step, now_ns, crc32(raw), index, len(text), text)
        words[word] = ticket
        words[self._newest_at] = ticket
