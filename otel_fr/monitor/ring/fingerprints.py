"""The running fingerprints of one rank's process groups (`otel_fr.fingerprint`), from the records of the ring.

Ranks report at different times, and only fingerprints at equal numbers can be compared. So each rank reports its
fingerprint at a multiple of `STEP`. It chooses a step that it passes about once between two reports. Each rank also
reports the fingerprint of all calls so far, which can be compared between ranks at the same number. This covers jobs
with few calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from otel_fr.fingerprint import MASK, STEP, hash_of, term, untold
from otel_fr.ring import KIND_COLLECTIVE, Record, SignatureDef

_SHIFT: Final = STEP.bit_length() - 1
LEVEL_SHIFT: Final = 2
"""Each level has a step that is 2^2 times the step of the previous level."""
LEVELS: Final = 9
"""The last level's step is 2^20. A rank that reports every five seconds would need 200,000 calls a second for it."""
MAX_HASHES: Final = 4_096
"""How many signatures' hashes are remembered. A job with ever new shapes must not take ever more memory."""
SETTLED_NS: Final = 1_000_000_000
"""After this time, no further call of the newest batch is expected."""

Fingerprint = tuple[int, ...]
"""The first covered number, then pairs of a number and the fingerprint of the calls up to this number.

If not 0, `otel_fr.fingerprint.untold` of these calls comes last: what the recorder did not record of them."""


class _OfGroup:
    """The fingerprint of one group.

    Attributes:
        since: the first covered number.
        number, index, newest_ns: number of the newest call, its index in its batch, and when it was enqueued.
        before: sum of all calls before ``number``.
        total: sum of all calls.
        levels: for each level, the number and the sum at its newest multiple.
        reported: the newest number of the last report.
        untold: what the recorder did not record of some call (`otel_fr.fingerprint.untold`).
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
        """Keep the sum up to a multiple of `STEP`, because the next call, ``number``, is beyond it."""
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
    """The fingerprints of one rank in one run."""

    def __init__(self, first: int = 0) -> None:
        """``first``: the first record of the run."""
        self._next = first
        self._groups: dict[str, _OfGroup] = {}
        self._has_lost = False
        # By object identity, like the span builder's templates. The last item keeps the id from being reused.
        self._hashes: dict[int, tuple[int, int, SignatureDef]] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Add new records, in the order of the ring. After a missing record, all groups start again."""
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
                # After a loss, some calls of the first batch may be lost.
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
            elif number >= group.since:  # out of order: the sums do not cover this call, so start again
                groups[record.group.id] = _OfGroup(group.number + 1)
            group.newest_ns = record.issued_ns
        self._next = expected

    def report(self, now_ns: int, *, is_over: bool = False) -> dict[str, Fingerprint]:
        """Return the fingerprints by group id. ``now_ns``: monotonic. ``is_over``: the rank enqueues no more calls."""
        found = {}
        for id_, group in self._groups.items():
            found[id_] = group.report(is_over or now_ns - group.newest_ns >= SETTLED_NS)
        return found

    def forget(self, groups: Iterable[str]) -> None:
        for id_ in groups:
            self._groups.pop(id_, None)

    def _hash(self, signature: SignatureDef) -> tuple[int, int, SignatureDef]:
        if len(self._hashes) >= MAX_HASHES:
            self._hashes.clear()
        found = self._hashes[id(signature)] = hash_of(signature), untold(signature), signature
        return found


def of_range(calls: Sequence[tuple[int, SignatureDef]], first: int, last: int, parts: int) -> Fingerprint:
    """Return the fingerprint of the calls from ``first`` to ``last``, at about ``parts`` evenly spaced numbers.

    Args:
        calls: (number, signature) of all calls in the range, in ascending order.
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
