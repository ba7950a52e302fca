"""Compares fingerprints (`otel_fr.fingerprint`), to find out whether the ranks of a group made the same collectives.

Each rank reports its fingerprint at some sequence numbers. The first one reported for a number is the reference for the
other ranks. Once a rank has made a different call, its fingerprint has the same offset to the reference from then on.
So a changed offset shows a new difference, between the last number with the old offset and this one. Ranks are not
compared if their recorders record different parts of a call (`otel_fr.fingerprint.untold`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from otel_fr.fingerprint import MASK, STEP, UNTOLD
from otel_fr_collector.jobs.rank_reports import KeptRange

MAX_APART = 8
"""How often ranks of one group are set apart from the others (`Fingerprints.set_apart`)."""
KEPT = 64
"""References kept: this many for the numbers at which all ranks report, and as many for other numbers. A rank passes a
few numbers between two reports (otel_fr/monitor/ring/fingerprints.py)."""


@dataclass(slots=True)
class Window:
    """Sequence numbers, both included, between which ranks disagree. ``since``: when that was seen (monotonic)."""

    first: int
    last: int
    since: float

    def join(self, other: Window) -> None:
        """Make the window cover the first difference of both."""
        self.first, self.last = min(self.first, other.first), min(self.last, other.last)


@dataclass(slots=True)
class Inquiry:
    """A round of questions: some ranks of a group are asked for the calls in which they disagree.

    Attributes:
        first, last: sequence numbers of the calls. deadline: monotonic.
        ranks: who was asked. awaited: the ranks whose answers end the round.
        window: where they were seen to disagree; ``first`` to ``last`` is a part of it.
        answers: by rank.
        is_cut: some rank no longer has all of the calls.
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
        """Whether all awaited answers have come, or it is time to continue without the others."""
        return now >= self.deadline or self.awaited <= self.answers.keys()

    def take(self, rank: int, given: KeptRange) -> bool:
        """Take an answer; False: it was not requested."""
        if rank not in self.ranks or given.last != self.last or given.first < self.first:
            return False
        self.answers[rank] = given
        return True

    def close(self, until: float) -> Inquiry:
        """End the round. The returned inquiry has no answers, and takes late ones until ``until`` (monotonic)."""
        return Inquiry(self.first, self.last, self.ranks, self.awaited, until, self.window)


@dataclass(slots=True)
class Differences:
    """Where the ranks of one run made different collectives, by group id.

    Attributes:
        windows: differences about which no rank was asked yet.
        inquiries: the rounds in progress. answered: the last round that is over.
    """

    windows: dict[str, Window] = field(default_factory=dict)
    inquiries: dict[str, Inquiry] = field(default_factory=dict)
    answered: dict[str, Inquiry] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.windows or self.inquiries or self.answered)

    def note(self, group: str, found: Window) -> None:
        """Note that ranks of the group disagree."""
        self.windows.setdefault(group, found).join(found)

    def take(self, rank: int, given: KeptRange) -> bool:
        """Take an answer; False: it was not requested."""
        asked = (known[given.group] for known in (self.inquiries, self.answered) if given.group in known)
        return any(inquiry.take(rank, given) for inquiry in asked)

    def clear(self) -> None:
        """Forget everything, because the run is no longer judged."""
        self.windows.clear()
        self.inquiries.clear()
        self.answered.clear()


def untold_by(given: Sequence[int]) -> int:
    """Bits of what the rank's recorder does not record: the last integer if there is an even number of them; else 0."""
    return given[-1] & UNTOLD if given and len(given) % 2 == 0 else 0


class Fingerprints:
    """The fingerprints of one group, bounded. Ranks are members of the group whose progress is known."""

    __slots__ = ("_apart", "_kind_of", "_kinds", "_times_apart")

    def __init__(self) -> None:
        self._kinds: dict[int, _Alike] = {0: _Alike()}
        """By kind. Ranks of one kind are compared: their recorders record the same, and none was set apart, or all were
        set apart together."""
        self._kind_of: dict[int, int] = {}
        """By rank; absent: 0."""
        self._apart: dict[int, int] = {}
        self._times_apart = 0

    def note(self, rank: int, given: Sequence[int], now: float) -> Window | None:
        """Take what a rank reported (`otel_fr.rank_report.sections.ReportedGroup.fingerprint`).

        Returns:
            where the rank's calls differ from the calls of ranks that reported before; None: no new difference.
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
        """The rank's kind and offset. Ranks of the same kind agree if their offsets are equal."""
        kind = self._kind_of.get(rank, 0)
        return kind, self._kinds[kind].offsets.get(rank, 0)

    def odd(self, ranks: Iterable[int]) -> list[int]:
        """The ranks that disagree with the majority of their kind."""
        shown = {rank: self.of(rank) for rank in ranks}
        usual: dict[int, int | None] = {}
        for (kind, offset), _ in Counter(shown.values()).most_common():
            usual.setdefault(kind, offset)
        return [rank for rank, (kind, offset) in shown.items() if offset != usual[kind]]

    def set_apart(self, ranks: Iterable[int]) -> None:
        """Compare these ranks only with each other from now on, because their calls are legal beside the others'.

        From the `MAX_APART`-th time on, they are no longer compared with any rank.
        """
        self._times_apart = min(self._times_apart + 1, MAX_APART)
        self._apart.update(dict.fromkeys(ranks, self._times_apart))


class _Alike:
    """The fingerprints of ranks of one kind.

    Attributes:
        offsets: rank -> difference of its fingerprint from the reference; None: not known yet. Absent: it agrees.
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
                continue  # no monitor sends this
            known = self._spread if (number + 1) % STEP else self._shared
            reference = known.get(number)
            if reference is None:
                if offset is None:
                    continue
                known[number] = (value - offset) & MASK
                if len(known) > KEPT:
                    del known[next(iter(known))]
                continue  # no other rank has confirmed it yet
            differs = (value - reference) & MASK
            if differs != offset:
                if offset is not None:
                    agreed = self._agreed.get(rank, since - 1)
                    # If it agreed beyond this number, it agreed with a rank that differs, too: the start is not known.
                    first = agreed + 1 if agreed < number else since
                    found = _joined(found, Window(first, number, now))
                self.offsets[rank] = offset = differs
                if not differs:
                    del self.offsets[rank]
            self._agreed[rank] = number
        return found

    def _note_other(self, rank: int, since: int) -> None:
        """Note that the rank's fingerprint begins at another call. Its offset is not known before the next number."""
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
