"""Whether the ranks of a group made the same collectives: their fingerprints (`otel_fr.fingerprint`), compared.

Each rank reports its fingerprint at some numbers. What a rank reported first at a number is what the others are
compared with, and of each rank is known by how much its fingerprint differs: from then on it always does. So a
difference is new if it changes, and lies between the number at which that was last seen and this one. Ranks whose
recorders do not tell the same of calls (`otel_fr.fingerprint.untold`) are not compared with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from otel_fr.fingerprint import MASK, STEP, UNTOLD
from otel_fr_collector.jobs.rank_reports import KeptRange

MAX_APART = 8
"""How often ranks of one group are set apart from those that they have been compared with."""
KEPT = 64
"""Numbers at which a fingerprint is known, of those at which all ranks report theirs, and as many of the others. A rank
passes a few between two of its reports (otel_fr/monitor/ring/fingerprints.py)."""


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
        ranks: who was asked. awaited: the ones whose answers end the round.
        window: where they were seen to disagree. These numbers are a part of it.
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
        """All answers that are waited for have come, or it is time to continue without the others."""
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


@dataclass(slots=True)
class Differences:
    """Of one run: where its ranks are seen to have made different collectives, by group id.

    Attributes:
        windows: not asked about yet.
        inquiries: what ranks have been asked. answered: the last inquiry that is over.
    """

    windows: dict[str, Window] = field(default_factory=dict)
    inquiries: dict[str, Inquiry] = field(default_factory=dict)
    answered: dict[str, Inquiry] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.windows or self.inquiries or self.answered)

    def note(self, group: str, found: Window) -> None:
        """Ranks of the group disagree."""
        self.windows.setdefault(group, found).join(found)

    def take(self, rank: int, given: KeptRange) -> bool:
        """Take an answer; False: it was not asked for."""
        asked = (known[given.group] for known in (self.inquiries, self.answered) if given.group in known)
        return any(inquiry.take(rank, given) for inquiry in asked)

    def clear(self) -> None:
        """The run is judged no more."""
        self.windows.clear()
        self.inquiries.clear()
        self.answered.clear()


def untold_by(given: Sequence[int]) -> int:
    """What the recorder of a rank's calls does not tell: the last of an even number of integers."""
    return given[-1] & UNTOLD if given and len(given) % 2 == 0 else 0


class Fingerprints:
    """Those of one group, bounded. Ranks are members of the group whose progress is known."""

    __slots__ = ("_apart", "_kind_of", "_kinds", "_times_apart")

    def __init__(self) -> None:
        self._kinds: dict[int, _Alike] = {0: _Alike()}
        """Ranks that are compared: those whose recorders tell the same, but for ranks that were set apart."""
        self._kind_of: dict[int, int] = {}
        """By rank, where it is not 0."""
        self._apart: dict[int, int] = {}
        self._times_apart = 0

    def note(self, rank: int, given: Sequence[int], now: float) -> Window | None:
        """Take what a rank reported (`otel_fr.rank_report.sections.ReportedGroup.fingerprint`).

        Returns:
            where it has made other calls than the ranks before; None: nowhere that is not known.
        """
        apart = self._apart.get(rank, 0)
        if apart == MAX_APART:
            return None
        kind = untold_by(given) + (UNTOLD + 1) * apart
        if kind:
            self._kind_of[rank] = kind
            if kind not in self._kinds:
                self._kinds[kind] = _Alike()
        return self._kinds[kind].note(rank, given, now)

    def of(self, rank: int) -> tuple[int, int | None]:
        """Ranks with the same first value are compared. Ranks with both values the same agree."""
        kind = self._kind_of.get(rank, 0)
        return kind, self._kinds[kind].offsets.get(rank, 0)

    def odd(self, ranks: Iterable[int]) -> list[int]:
        """Those of the ranks that do not agree with most of these that they are compared with."""
        shown = {rank: self.of(rank) for rank in ranks}
        usual: dict[int, int | None] = {}
        for (kind, offset), _ in Counter(shown.values()).most_common():
            usual.setdefault(kind, offset)
        return [rank for rank, (kind, offset) in shown.items() if offset != usual[kind]]

    def set_apart(self, ranks: Iterable[int]) -> None:
        """Their calls were seen to be legal beside the others' calls: compare them with each other only.

        At the `MAX_APART`-th time: with no rank any more.
        """
        self._times_apart = min(self._times_apart + 1, MAX_APART)
        self._apart.update(dict.fromkeys(ranks, self._times_apart))


class _Alike:
    """The fingerprints of ranks whose recorders tell the same.

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
        """As `Fingerprints.note`."""
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
