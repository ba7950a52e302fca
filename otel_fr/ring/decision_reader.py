"""Reads the decisions in a ring, of a running or an ended rank. All data is checked before use."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from otel_fr.ring.decision_layout import (
    MAX_NAME,
    MAX_TEXT,
    NAME_SIZE,
    NAMES,
    NAMES_START,
    ROW,
    ROW_SIZE,
    ROWS,
    ROWS_START,
    WORD_FAILURES,
    WORD_NAMES,
    WORD_NEWEST,
)
from otel_fr.ring.names import read_name


@dataclass(frozen=True, slots=True)
class Decided:
    """Successive decisions of one name that had the same value.

    Attributes:
        first, last: numbers of the first and the last of these decisions, from 1.
        step: training step of the first decision; -1: none.
        value: the value as text, maybe cut.
        digest: digest of the full text.
        decided_ns: when the first decision was made (monotonic).
    """

    name: str
    first: int
    last: int
    step: int
    value: str
    digest: int
    decided_ns: int


class DecisionReader:
    """Reads the section of one ring."""

    def __init__(self, mapping: mmap.mmap, words: memoryview, start: int) -> None:
        """``words``: the mapping as 8-byte words. ``start``: the section's offset in the file."""
        self._map = mapping
        self._words = words
        self._start = start
        self._first = start // 8

    def newest(self) -> int:
        """Return the number of changes of values so far."""
        newest: int = self._words[self._first + WORD_NEWEST]
        return newest

    @property
    def failures(self) -> int:
        """Number of decisions that could not be recorded because of an error."""
        count: int = self._words[self._first + WORD_FAILURES]
        return count

    def decided(self) -> list[Decided]:
        """Return the decisions in the ring, oldest first."""
        names = self._names()
        newest = self.newest()
        rows: list[tuple[int, int, int, int, int, str]] = []
        for ticket in range(max(newest - ROWS, 0) + 1, newest + 1):
            at = self._start + ROWS_START + ticket % ROWS * ROW_SIZE
            if self._words[at // 8] != ticket:
                continue
            number, step, decided, digest, index, length, text = ROW.unpack_from(self._map, at + 8)
            if self._words[at // 8] == ticket and index in names and length <= MAX_TEXT and number:
                rows.append((index, number, step, decided, digest, text[:length].decode("utf-8", "replace")))
        found: list[Decided] = []
        next_of: dict[int, int] = {}
        for index, number, step, decided, digest, text in reversed(rows):
            name, count = names[index]
            last = next_of.get(index, max(count, number) + 1) - 1
            next_of[index] = number
            if number <= last:
                found.append(Decided(name, number, last, step, text, digest, decided))
        return found[::-1]

    def _names(self) -> dict[int, tuple[str, int]]:
        """Return index -> (name, number of its decisions)."""
        found: dict[int, tuple[str, int]] = {}
        for index in range(min(self._words[self._first + WORD_NAMES], NAMES)):
            at = self._start + NAMES_START + index * NAME_SIZE
            name = read_name(self._map, self._words[at // 8], at + 16, MAX_NAME)
            if name is not None:
                found[index] = (name, self._words[at // 8 + 1])
        return found
