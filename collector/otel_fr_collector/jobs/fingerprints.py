"""Whether the ranks of a group made the same collectives: their fingerprints (`otel_fr.fingerprint`), compared.

Each rank reports its fingerprint at some numbers. What a rank reported first at a number is what the others are
compared with, and of each rank is known by how much its fingerprint differs: from then on it always does. So a
difference is new if it changes, and lies between the number at which that was last seen and this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from otel_fr.fingerprint import MASK, STEP
from otel_fr_collector.jobs.rank_reports import KeptRange

ANSWER_SECONDS = 3.0
"""For one round of questions to some ranks; then those count that have answered."""
KEPT = 64
"""Numbers at which a fingerprint is known, of those at which all ranks report theirs, and as many of the others. A rank
passes a few between two of its reports (otel_fr/monitor/fingerprints.py)."""


@dataclass(slots=True)
class Window:
    """Numbers of collectives among which ranks disagree, both included. ``since``: when that was seen, monotonic."""

    first: int
    last: int
    since: float

    def join(self, other: Window) -> None:
        """Make it cover the first difference of both."""
        self.first, self.last = min(self.first, other.first), min(self.last, other.last)


@dataclass(slots=True)
class Inquiry:
    """What some ranks of a group have been asked: their calls among which they disagree.

    Attributes:
        first, last: sequence numbers. deadline: monotonic.
        ranks: who was asked. awaited: those of them whose answers end the round.
        window: where they were seen to disagree, of which these numbers are a part.
        answers: by rank.
        is_cut: some rank does not have all calls any more.
    """

    first: int
    last: int
    ranks: frozenset[int]
    awaited: frozenset[int]
    deadline: float
    window: Window
    answers: dict[int, KeptRange] = field(default_factory=dict)
    is_cut: bool = False

    def is_over(self, now: float) -> bool:
        """All answers that are waited for have come, or it is time to go on without the others."""
        return now >= self.deadline or self.awaited <= self.answers.keys()

    def take(self, rank: int, given: KeptRange) -> bool:
        """Take an answer; False: it was not asked for."""
        if rank not in self.ranks or given.last != self.last or given.first < self.first:
            return False
        self.answers[rank] = given
        return True

    def close(self, until: float) -> Inquiry:
        """The round is over; answers that come until then may still be taken."""
        return Inquiry(self.first, self.last, self.ranks, self.awaited, until, self.window)


class Fingerprints:
    """Those of one group, bounded. Ranks are members of the group whose progress is known.

    Attributes:
        offsets: by how much a rank's fingerprint differs from what it is compared with; absent: it does not.
    """

    __slots__ = ("_agreed", "_others", "_shared", "_since", "_spread", "offsets")

    def __init__(self) -> None:
        self._since = -1
        self._shared: dict[int, int] = {}
        self._spread: dict[int, int] = {}
        self.offsets: dict[int, int | None] = {}
        self._others: dict[int, int] = {}
        self._agreed: dict[int, int] = {}

    def note(self, rank: int, given: Sequence[int], now: float) -> Window | None:
        """Take what a rank reported (`otel_fr.rank_report.ReportedGroup.fingerprint`).

        Returns:
            where it has made other calls than the ranks before; None: nowhere that is not known.
        """
        since = given[0]
        if since != self._since:
            self._note_other(rank, since)
        found: Window | None = None
        offset = self.offsets.get(rank, 0)
        for place in range(1, len(given) - 1, 2):
            number, value = given[place], given[place + 1]
            if number < since:
                continue  # no monitor says so
            known = self._spread if (number + 1) % STEP else self._shared
            reference = known.get(number)
            if reference is None:
                if offset is None:
                    continue
                known[number] = (value - offset) & MASK
                if len(known) > KEPT:
                    del known[next(iter(known))]
                continue  # nobody agrees with it yet
            differs = (value - reference) & MASK
            if differs != offset:
                if offset is not None:
                    agreed = self._agreed.get(rank, since - 1)
                    # Beyond this number it agreed with one that itself differs: where it began to is not known.
                    first = agreed + 1 if agreed < number else since
                    found = _joined(found, Window(first, number, now))
                self.offsets[rank] = offset = differs
                if not differs:
                    del self.offsets[rank]
            self._agreed[rank] = number
        return found

    def _note_other(self, rank: int, since: int) -> None:
        """The rank's fingerprint begins elsewhere: by how much it differs shows at the next number only."""
        if self._since < 0:
            self._since = since
        elif self._others.get(rank) != since:
            self._others[rank] = since
            self._agreed.pop(rank, None)
            self.offsets[rank] = None


def _joined(found: Window | None, other: Window) -> Window:
    if found is not None:
        other.join(found)
    return other
