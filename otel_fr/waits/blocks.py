"""Finds the stragglers of a group. Time is divided into blocks, and the lateness of a rank adds up in each block.

A rank is named if it is late in nearly all of the latest blocks, too often for chance, by much more than the ranks
usually differ, and if the others wait for it for a good part of their time. Ranks that are late by turns, for a moment,
or like others, are not named.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

from otel_fr.match.lateness import Lateness

SECONDS = 0.4
"""Shortest length of a block. A block is one collective if collectives are further apart. Over several collectives,
lateness adds up, and random differences even out."""
KEPT = 64
"""Blocks that are kept for a group."""
CHANCE = 2e-5
"""Largest probability, for a rank that is named before an incident opens, that one of three equal ranks comes last as
often by chance: in 11 of 11 blocks, 13 of 14, 17 of 20; in a group of two: 17 of 17, 21 of 22, 28 of 32."""
RARE = 2e-7
"""The same probability for an incident: 15 of 15, 17 of 18; in a group of two: 24 of 24, 28 of 29."""
MIN_SPAN = 5.0
"""Least seconds that these blocks cover. A hiccup of one rank is shorter."""
SPREADS = 3.0
"""A straggler is late by more than this many spreads. A group's spread is the median of `Block.spread`."""
MIN_SHOWN = 16
"""Least blocks for which metrics and the page show lateness."""
MAX_LATE = 8
"""Late ranks that are kept of one block, the latest first."""
MAX_WATCHED = 512
"""Most groups, of all runs together, whose blocks are kept. Each takes up to 60 kB."""
KEPT_SHARE = 0.6
"""An incident is over once the share of late blocks falls below this part of the share that opens an incident."""
FILLED = 0.8
"""Least part of the window that an incident's blocks cover, because the window hardly ever begins with a block."""
OVER_WINDOWS = 5
"""An incident is over after this many windows without a wait for its ranks. A shorter pause does not end it."""
QUIET_BLOCKS = 8
"""Waiting has ended if no rank was waited for during this many usual intervals between two blocks."""


@dataclass(frozen=True)
class StragglerLimits:
    """When a rank counts as a straggler.

    Attributes:
        seconds: lateness from which a block counts, the option ``--straggler-seconds``.
        share: share of such blocks in which the rank is late.
        wait: share of the time for which others wait for it.
        window: seconds for which all this must last.
    """

    seconds: float = 0.05
    share: float = 0.85
    wait: float = 0.1
    window: float = 12.0


class Late(NamedTuple):
    """A rank in a block: by how many seconds it was late in all, and in how many collectives."""

    rank: int
    seconds: float
    times: int


class Block(NamedTuple):
    """A block in which ranks were waited for.

    Attributes:
        at: when the group's first member enqueued the block's first collective, in seconds by its clock.
        late: late ranks, the latest first; empty: most of the group was late, and others waited for it.
        spread: seconds by which half of the ranks differ at most from what is usual.
    """

    at: float
    late: tuple[Late, ...]
    spread: float


class Room(Protocol):
    """Counts the groups whose blocks are kept, of all runs together."""

    watched: int


class Blocks:
    """The blocks of one group, bounded.

    Attributes:
        kept: the latest blocks in which ranks were waited for; None: there were none, or no room for them.
        since, until: when the first and the current block began, in seconds by the first member's clock.
        members: number of members of the group.
    """

    __slots__ = ("_limits", "_room", "_sums", "kept", "members", "since", "until")

    def __init__(self, limits: StragglerLimits, room: Room) -> None:
        self._limits = limits
        self._room = room
        self._sums: dict[int, tuple[float, int]] = {}
        self.kept: deque[Block] | None = None
        self.since = self.until = 0.0
        self.members = 0

    def begin(self, at: float) -> None:
        """Start with the first collective, enqueued at that time. Earlier blocks say nothing about later ones."""
        self.since = self.until = at
        self.forget()

    def move_to(self, at: float) -> None:
        """Note that the next collective was enqueued at that time."""
        if at - self.until < SECONDS:
            return
        if self._sums:
            self._close()
        self.until = at

    def add(self, rank: int, seconds: float, times: int) -> None:
        """Note how long after half of the group a rank came in a collective; negative: before it."""
        total, count = self._sums.get(rank, (0.0, 0))
        self._sums[rank] = total + seconds, count + times * (seconds > 0)

    def lateness(self) -> list[Lateness]:
        """Return the lateness of each rank that was late, the most awaited first; empty: too little is known."""
        kept = self.kept
        return [] if kept is None or len(kept) < MIN_SHOWN else self._lateness(kept)

    def slowest(self) -> Lateness | None:
        """Return the rank that is late in nearly all of the latest blocks, if that costs enough; None: nobody is named.

        The limits of an incident apply, but not its window, so that the result is known within seconds.
        """
        found = self._named(CHANCE, MIN_SPAN)
        return found[0] if found else None

    def stragglers(self, known: tuple[int, ...] = ()) -> list[Lateness]:
        """Return the ranks that persistently come last. Ranks in ``known`` did so before; for them, less is enough."""
        if not self.kept or (known and self.is_over(known)):
            return []
        least = self._limits.share * KEPT_SHARE
        found = self._named(RARE, FILLED * self._limits.window)
        named = {one.rank for one in found}
        return found + [
            one for one in self.lateness() if one.rank in known and one.rank not in named and one.share >= least
        ]

    def is_over(self, known: tuple[int, ...]) -> bool:
        """Return True if the group continues without waiting for these ranks; False if this is not known yet."""
        kept = self.kept or ()
        newest = self.since
        for block in kept:
            if any(one.rank in known for one in block.late):
                newest = block.at
        if self._is_quiet_since(newest, OVER_WINDOWS):
            return True
        if len(kept) < KEPT:
            return False
        least = self._limits.share * KEPT_SHARE
        return all(one.share < least for one in self.lateness() if one.rank in known)

    def forget(self) -> None:
        """Drop all blocks: they say nothing about later ones."""
        self._sums.clear()
        if self.kept is not None:
            self.kept.clear()

    def release(self) -> None:
        """Free the group's room, because the group is dropped."""
        self._sums.clear()
        if self.kept is not None:
            self.kept = None
            self._room.watched -= 1

    def _is_quiet_since(self, at: float, windows: int = 1) -> bool:
        """Return True if enough time has passed that further blocks with waits would have come.

        Args:
            windows: least number of windows that must have passed.
        """
        return self.until - at >= self._pause(windows) > 0

    def _pause(self, windows: int = 1) -> float:
        """Return seconds without a wait that are longer than the time between two waits."""
        kept = self.kept
        interval = (kept[-1].at - kept[0].at) / len(kept) if kept else 0.0
        return max(windows * self._limits.window, QUIET_BLOCKS * interval)

    def _close(self) -> None:
        """End the current block. A rank's lateness is the total of how much later than half of the group it came."""
        sums, members = self._sums, max(self.members, len(self._sums))
        totals = sorted([*(total for total, _ in sums.values()), *[0.0] * (members - len(sums))])
        usual = totals[(members - 1) // 2]
        least = self._limits.seconds
        late = [Late(rank, own - usual, times) for rank, (own, times) in sums.items() if own - usual >= least and times]
        sums.clear()
        if not late and usual - totals[0] < least:
            return
        if self.kept is None:
            if self._room.watched >= MAX_WATCHED:
                return
            self._room.watched += 1
            self.kept = deque(maxlen=KEPT)
        spread = sorted(abs(total - usual) for total in totals)[(members - 1) // 2]
        late.sort(key=lambda one: (-one.seconds, one.rank))
        self.kept.append(Block(self.until, tuple(late[:MAX_LATE]), spread))

    def _lateness(self, blocks: Sequence[Block]) -> list[Lateness]:
        by_rank: dict[int, list[Late]] = {}
        for block in blocks:
            for one in block.late:
                by_rank.setdefault(one.rank, []).append(one)
        span, count, since = self.until - blocks[0].at, len(blocks), self._since()
        found = []
        for rank, own in by_rank.items():
            total = sum(one.seconds for one in own)
            each = total / max(1, sum(one.times for one in own))
            waited, age = min(1.0, total / span) if span else 0.0, self.until - since[rank]
            found.append(Lateness(rank, len(own) / count, count, each, waited, span, age))
        return sorted(found, key=lambda one: (-one.waited, -one.share, one.rank))

    def _since(self) -> dict[int, float]:
        """Return when the present lateness of each rank began: since then, it was late without a pause."""
        found: dict[int, float] = {}
        last: dict[int, float] = {}
        pause = self._pause()
        for block in self.kept or ():
            for one in block.late:
                if one.rank not in last or block.at - last[one.rank] >= pause:
                    found[one.rank] = block.at
                last[one.rank] = block.at
        return found

    def _named(self, chance: float, span: float) -> list[Lateness]:
        """Return the ranks that all kept blocks name or, if they name none, the latest window's blocks."""
        kept = self.kept
        if not kept or self._is_quiet_since(kept[-1].at):
            return []
        recent = [one for one in kept if self.until - one.at <= self._limits.window]
        return self._named_by(kept, chance, span) or self._named_by(recent, chance, span)

    def _named_by(self, blocks: Sequence[Block], chance: float, span: float) -> list[Lateness]:
        """Return the ranks that are late by more than chance, the group's spread and the limits.

        Args:
            span: least seconds that the blocks cover.
        """
        if not blocks or self.until - blocks[0].at < span:
            return []
        limits, count = self._limits, len(blocks)
        last = Counter(block.late[0].rank for block in blocks if block.late)
        scale = SPREADS * median(block.spread for block in blocks)
        return [
            one
            for one in self._lateness(blocks)
            if one.share >= limits.share
            and one.waited >= limits.wait
            and _median_of(one.rank, blocks) > scale
            and not (
                may_be_chance(last[one.rank], count, self.members, chance)
                and may_be_chance(round(one.share * count), count, 2, chance)  # half of a group may be late
            )
        ]


def _median_of(rank: int, blocks: Sequence[Block]) -> float:
    """Return the median seconds by which the rank was late in these blocks."""
    return median(next((one.seconds for one in block.late if one.rank == rank), 0.0) for block in blocks)


@functools.lru_cache(4_096)
def may_be_chance(last: int, blocks: int, members: int = 2, chance: float = CHANCE) -> bool:
    """Return True if chance explains that some member comes last in ``last`` of ``blocks`` blocks.

    More than three members count as three: even in a large group, only a few ranks may be late now and then.
    """
    sides = 3 if members > 2 else 2
    ways = sum(math.comb(blocks, count) * (sides - 1) ** (blocks - count) for count in range(last, blocks + 1))
    return bool(sides * ways > chance * sides**blocks)
