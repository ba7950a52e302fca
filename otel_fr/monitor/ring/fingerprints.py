"""The running fingerprints of one rank's process groups (`otel_fr.fingerprint`), from the records of the ring.

Ranks report at different times, and compare only what they both reported. So each reports its fingerprint at numbers
that are the same on all ranks, multiples of `STEP`: of a multiple that it passes about once between two reports. It
also reports the fingerprint of all calls so far, which ranks at the same number can compare: so jobs with few calls are
covered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otel_fr.fingerprint import MASK, STEP, hash_of, term, untold
from otel_fr.ring import KIND_COLLECTIVE, Record, SignatureDef

_SHIFT: Final = STEP.bit_length() - 1
LEVEL_SHIFT: Final = 2
"""Each level has a step that is 2^2 times the step of the level before."""
LEVELS: Final = 9
"""The last level's step is 2^20: a rank that reports every five seconds would make 200,000 calls a second."""
MAX_HASHES: Final = 4_096
"""Signatures whose hash is remembered, so that a job with ever new shapes takes no more memory."""
SETTLED_NS: Final = 1_000_000_000
"""After so long, no further call of the newest batch is expected."""

Fingerprint = tuple[int, ...]
"""The first number that is covered, and then, in turn, a number and the fingerprint of the calls up to that one.

At the end, if it is not 0: what the recorder did not tell of these calls (`otel_fr.fingerprint.untold`)."""


class _OfGroup:
    """The fingerprint of one group.

    Attributes:
        since: the first number that is covered.
        number: of the newest call. index: of that call in its batch. newest_ns: when it was enqueued.
        before: the sum of all calls before that number. total: of all calls.
        levels: by level, the number and the sum at its newest multiple.
        reported: the newest number of the last report.
        untold: what the recorder did not tell of some call (`otel_fr.fingerprint.untold`).
    """

    __slots__ = ("before", "index", "levels", "newest_ns", "number", "reported", "since", "total", "untold")

    def __init__(self, since: int) -> None:
        self.since = since
        self.number = since - 1
        self.index = 0
        self.newest_ns = 0
        self.before = self.total = 0
        self.levels: list[tuple[int, int]] = []
        self.reported = since - 1
        self.untold = 0

    def pass_step(self, number: int) -> None:
        """The call with that number comes next, beyond a multiple of `STEP`: keep the sum up to there."""
        multiple = number >> _SHIFT
        mark = (multiple << _SHIFT) - 1, self.total
        for level in range(LEVELS):
            self.levels[level : level + 1] = [mark]
            if multiple & (1 << LEVEL_SHIFT) - 1:
                break
            multiple >>= LEVEL_SHIFT

    def report(self, is_settled: bool) -> Fingerprint:
        now = (self.number, self.total) if is_settled else (self.number - 1, self.before)
        passed, level = self.number - self.reported, 0
        self.reported = self.number
        while level < LEVELS and STEP << level * LEVEL_SHIFT < passed:
            level += 1
        found = [self.since]
        if level < len(self.levels) and self.levels[level][0] >= self.since and self.levels[level][0] != now[0]:
            found += self.levels[level]
        if now[0] >= self.since:
            found += now
        if len(found) == 1:
            return ()
        return (*found, self.untold) if self.untold else tuple(found)


class Fingerprints:
    """Those of one rank in one run."""

    def __init__(self, first: int = 0) -> None:
        """``first``: the first record of the run."""
        self._next = first
        self._groups: dict[str, _OfGroup] = {}
        self._has_lost = False
        # By object identity, as the span builder's templates; the last item keeps the id from being used again.
        self._hashes: dict[int, tuple[int, int, SignatureDef]] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Add new records, in the order of the ring. After one that is missing, all groups begin anew."""
        groups, hashes, expected = self._groups, self._hashes, self._next
        for record in records:
            if record.record_id != expected:
                self._groups = groups = {}
                self._has_lost = True
            expected = record.record_id + 1
            if record.kind != KIND_COLLECTIVE:
                continue
            number, signature = record.coll_seq, record.signature
            group = groups.get(record.group.id)
            if group is None:
                if len(record.group.ranks) == 1:
                    continue
                # Of the first batch after a loss, some calls may be among those that are lost.
                group = groups[record.group.id] = _OfGroup(number + 1 if self._has_lost and number > 1 else number)
            known = hashes.get(id(signature)) or self._hash(signature)
            hashed = known[0]
            if known[1]:
                group.untold |= known[1]
            if number > group.number:
                if number >> _SHIFT != group.number >> _SHIFT:
                    group.pass_step(number)
                group.number, group.index, group.before = number, 0, group.total
                group.total = group.total + hashed * (2 * number + 1) & MASK  # `term`, without a call
            elif number == group.number and number >= group.since:
                group.index += 1
                group.total = group.total + term(hashed, number, group.index) & MASK
            elif number >= group.since:  # not in order: what was kept does not cover it
                groups[record.group.id] = _OfGroup(group.number + 1)
            group.newest_ns = record.issued_ns
        self._next = expected

    def report(self, now_ns: int, *, is_over: bool = False) -> dict[str, Fingerprint]:
        """By group id. ``now_ns``: monotonic; ``is_over``: the rank enqueues nothing more."""
        found = {}
        for id_, group in self._groups.items():
            found[id_] = group.report(is_over or now_ns - group.newest_ns >= SETTLED_NS)
        return found

    def forget(self, groups: Iterable[str]) -> None:
        """Remove these groups."""
        for id_ in groups:
            self._groups.pop(id_, None)

    def _hash(self, signature: SignatureDef) -> tuple[int, int, SignatureDef]:
        if len(self._hashes) >= MAX_HASHES:
            self._hashes.clear()
        found = self._hashes[id(signature)] = hash_of(signature), untold(signature), signature
        return found


def of_range(calls: Sequence[tuple[int, SignatureDef]], first: int, last: int, parts: int) -> Fingerprint:
    """The fingerprint of the calls from number ``first`` to ``last``, at about ``parts`` numbers that lie evenly.

    Args:
        calls: number and signature of each, rising; with all calls of the range.
    """
    step = max(1, -(-(last - first + 1) // parts))
    found, total, at, before, index, missing = [first], 0, first + step - 1, -1, 0, 0
    hashes: dict[int, int] = {}
    for number, signature in calls:
        hashed = hashes.get(id(signature))
        if hashed is None:
            hashed = hashes[id(signature)] = hash_of(signature)
            missing |= untold(signature)
        while number > at:
            found += (at, total)
            at += step
        index = index + 1 if number == before else 0
        before = number
        total = total + term(hashed, number, index) & MASK
    while at < last:
        found += (at, total)
        at += step
    return (*found, last, total, missing) if missing else (*found, last, total)
