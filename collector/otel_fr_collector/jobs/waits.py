"""How long the ranks of a group wait for the one that comes last, from each rank's own clock.

In a collective that ends on all ranks at about the same time (`SYNCHRONISING`), a rank's duration, from enqueueing to
the end, is the time that it waits for others and the transfer. The rank with the shortest duration came last, and the
differences say by how much; no two clocks are compared. A rank is *late* by how much it came after half of the group.

The lateness counts only where the rank itself spent that time: since the end of its previous call, in whatever group,
it took longer than the others by at least half of it. Otherwise it came late because that call ended late, for all or
for it. That excludes three cases: the later calls of a burst, such as DDP's buckets, which are enqueued before the
previous ones end; a rank that waited for a straggler in another group; and a pipeline stage that waited for a message.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from otel_fr.match import CallState
from otel_fr.match.lateness import SYNCHRONISING, Lateness
from otel_fr_collector.jobs.calls import CompactCall, RankCall, expand
from otel_fr_collector.jobs.tallies import Tallies
from otel_fr_collector.jobs.usage import Usage

EVENTS = 64
"""Collectives that a verdict rests on. If two ranks come last by chance, as coins fall, one of them is late in 85 % of
so many once in 10^8 times."""
MIN_WAIT = 0.001
"""Seconds by which the last rank comes after half of the group, from which a wait is counted (`Tallies`). Shorter ones
are of the order of what it takes to notice the end of a call."""
CHANCE = 2e-5
"""Probability with which one of three ranks, each of which may come last, does so as often as the one that is named
before an incident may open: in 11 of 11 waits, 13 of 14, 17 of 20; in a group of two: 17 of 17, 21 of 22, 28 of 32."""
MIN_SPAN = 5.0
"""Seconds over which these waits lie at least: a hiccup of one rank is shorter."""
MIN_SHOWN = 16
"""Collectives from which lateness is shown in metrics and on the page."""
MAX_LATE = 8
"""Late ranks that are kept of one collective; the latest come first."""
MAX_WATCHED = 512
"""Groups of all runs of which such collectives are kept: each takes up to 60 kB."""
FAST = 16.0
"""Collectives per second of one group from which only one in `SAMPLE` is measured, to save time."""
SAMPLE = 4
_GOLDEN, _MASK = 2_654_435_769, 0xFFFF_FFFF
"""Numbers times 2^32 divided by the golden ratio, modulo 2^32, are spread evenly (Knuth, TAOCP 6.4), so that the sample
never keeps step with a number of collectives per training step."""
KEPT_SHARE = 0.6
"""Of the share that opens an incident: below this part of it, it is over."""
QUIET_EVENTS = 8
"""Usual times between two collectives in which ranks are waited for, after which nobody is waited for any more."""

BLOCK = 2.0
"""Seconds over which that rate is measured: some training steps, so that all calls of a step are treated alike."""
NANO = 1e9


@dataclass(frozen=True)
class StragglerLimits:
    """When a rank counts as a straggler: the options ``--straggler-...``.

    Attributes:
        seconds: lateness from which a collective counts. share: of such collectives, in which the rank is late.
        wait: share of the time that others wait for it. window: seconds over which all this has to last.
    """

    seconds: float = 0.05
    share: float = 0.85
    wait: float = 0.1
    window: float = 60.0


class Event(NamedTuple):
    """One collective in which ranks were waited for.

    Attributes:
        at: when the group's first member enqueued it, seconds, by its clock.
        waited: seconds. late: rank -> seconds, as pairs.
        sequence: its number. measured, total: `Waits.measured` and `Waits.total` up to it.
    """

    at: float
    waited: float
    late: tuple[tuple[int, float], ...]
    sequence: int
    measured: int
    total: float


class Wait(NamedTuple):
    """One collective in which half of the group waited for ``rank``, for ``seconds``.

    ``at``: as of `Event`. ``of``: how many collectives it stands for, as one of a sample.
    """

    at: float
    rank: int
    seconds: float
    of: int


class Slowest(NamedTuple):
    """The rank that a group waits for.

    Attributes:
        waited: share of the latest time that half of the group waited for it.
        share: of the latest waits, in which it came last. seconds: by which it did on average.
    """

    rank: int
    waited: float
    share: float
    seconds: float


class Waits:
    """The waits of one group, bounded.

    Attributes:
        tallies: totals of its ranks. lost: seconds that half of the group waited for its last rank, in all.
        recent: the latest waits that count for the straggler limits; None: there were none, or no room for them.
        measured: collectives that were looked at. total: seconds waited in them.
        now, sequence, members: of the newest of them. since: of the first of them.
        is_off: nothing is measured, because spans are missing: what the ranks did before a collective is not known.
        are_ends_seen: when its collectives were seen to have ended is all that is known, which shows of no rank that it
            came last: NCCL's ends are seen up to 0.1 s later, on each rank at a time of its own.
    """

    __slots__ = (
        "_block",
        "_fast",
        "_limits",
        "_passed",
        "_usage",
        "are_ends_seen",
        "events",
        "is_off",
        "lost",
        "measured",
        "members",
        "now",
        "recent",
        "sequence",
        "since",
        "tallies",
        "total",
    )

    def __init__(self, limits: StragglerLimits, usage: Usage) -> None:
        self._limits = limits
        self._usage = usage
        self._fast = False
        self._passed = 0
        self._block = 0.0
        self.tallies = Tallies(usage)
        self.lost = 0.0
        self.is_off = self.are_ends_seen = False
        self.events: deque[Event] | None = None
        self.recent: deque[Wait] | None = None
        self.measured = 0
        self.total = 0.0
        self.now = self.since = 0.0
        self.sequence = 0
        self.members = 0

    def add(self, sequence: int, calls: Mapping[int, RankCall | CompactCall], members: tuple[int, ...]) -> None:
        """Take a collective that all members have completed, with the calls of all."""
        if self.is_off:
            return
        self._passed += 1
        is_sample = self._fast
        if is_sample and (sequence * _GOLDEN & _MASK) * SAMPLE > _MASK:
            return
        first = calls.get(members[0] if members else min(calls))
        if first is None:
            return
        if isinstance(first, RankCall):
            at, signature, is_seen = first.enqueued_wall, first.signature, first.is_end_seen
        else:
            at, signature, is_seen = first[5] / NANO, first[1].signature, first[1].is_end_seen
        if is_seen:
            self.are_ends_seen = True
            return
        if at is None:
            return
        self._note(sequence, at)
        self.members = len(calls)
        if signature.operation not in SYNCHRONISING:
            return
        durations = _durations(calls)
        if durations is None:
            return
        least = min(durations)
        if max(durations) - least < MIN_WAIT * NANO or least < 0:
            return
        usual = sorted(durations)[len(durations) // 2]
        of = SAMPLE if is_sample else 1
        if usual - least >= MIN_WAIT * NANO:
            self._tally(calls, durations, least, usual, of)
        if usual - least >= self._limits.seconds * NANO:
            self._add_wait(sequence, at, calls, durations, usual, of)

    def lateness(self) -> list[Lateness]:
        """Of each rank that was late, the one that is waited for most first; empty: too little is known."""
        events = self.events
        if events is None or len(events) < MIN_SHOWN:
            return []
        oldest = events[0]
        late: dict[int, list[float]] = {}
        for event in events:
            for rank, seconds in event.late:
                late.setdefault(rank, []).append(seconds)
        count, span, waited = len(events), self.now - oldest.at, sum(event.waited for event in events)
        of_time = self._waited_share()
        found = [
            Lateness(rank, len(own) / count, count, sum(own) / len(own), of_time * min(1.0, sum(own) / waited), span)
            for rank, own in late.items()
        ]
        return sorted(found, key=lambda one: (-one.waited, -one.share, one.rank))

    def slowest(self) -> Slowest | None:
        """The rank that comes last in nearly all of the latest waits, if they cost enough; None: nobody is named.

        The limits are those of an incident, but for the window: this is known within seconds.
        """
        limits = self._limits
        recent = [one for one in self.recent or () if self.now - one.at <= limits.window]
        if not recent or self.now - recent[0].at < MIN_SPAN:
            return None
        rank, count = Counter(one.rank for one in recent).most_common(1)[0]
        if count < limits.share * len(recent) or may_be_chance(count, len(recent), self.members):
            return None
        time = self.now - recent[0].at
        own = [one for one in recent if one.rank == rank]
        lost = sum(one.seconds * one.of for one in own)
        if lost < limits.wait * time:
            return None
        seconds = sum(one.seconds for one in own) / count
        return Slowest(rank, min(1.0, lost / time), count / len(recent), seconds)

    def stragglers(self, known: tuple[int, ...] = ()) -> list[Lateness]:
        """The ranks that come last persistently; ``known``: those that did so far, which may be late less often."""
        events, limits = self.events, self._limits
        if events is None or len(events) < EVENTS or (known and self.is_over(known)):
            return []
        return [
            one
            for one in self.lateness()
            if (one.share >= limits.share and one.waited >= limits.wait)
            or (one.rank in known and one.share >= limits.share * KEPT_SHARE)
        ]

    def is_over(self, known: tuple[int, ...]) -> bool:
        """Whether the group goes on and does not wait for these ranks any more; false if that is not known yet."""
        events, window = self.events or (), self._limits.window
        newest, interval = self.since, 0.0
        for event in events:
            if any(rank in known for rank, _ in event.late):
                newest = event.at
        if self.events:
            interval = (self.events[-1].at - self.events[0].at) / len(self.events)
        if not self.measured or self.now - newest >= max(window, QUIET_EVENTS * interval) > 0:
            return bool(self.measured)
        if len(events) < EVENTS:
            return False
        least = self._limits.share * KEPT_SHARE
        return all(one.share < least for one in self.lateness() if one.rank in known)

    def forget(self) -> None:
        """What lies behind says nothing about what comes."""
        if self.events is not None:
            self.events.clear()
        if self.recent is not None:
            self.recent.clear()

    def release(self) -> None:
        """The group is dropped: its room is free."""
        self.tallies.release()
        self.recent = None
        if self.events is not None:
            self.events = None
            self._usage.watched -= 1

    def _note(self, sequence: int, at: float) -> None:
        """One more is measured; and whether only a sample is from now on."""
        if not self.measured or not -self._limits.window < at - self.now < 1e6:
            self.since = at  # the first; or its clock was set
            self.forget()
            self._fast, self._passed, self._block = False, 0, at
        elif at - self._block >= BLOCK:
            self._fast = self._passed > FAST * (at - self._block)
            self._passed, self._block = 0, at
        self.measured += 1
        self.now, self.sequence = at, sequence

    def _tally(
        self,
        calls: Mapping[int, RankCall | CompactCall],
        durations: list[float],
        least: float,
        usual: float,
        of: int,
    ) -> None:
        """Count a wait, if the last rank itself spent that time; ``least``, ``usual``: of the durations."""
        last, own = -1, None
        gaps: list[float] = []
        for (rank, call), took in zip(calls.items(), durations, strict=True):
            if took == least:
                last, own = rank, _gap(call)
            elif took >= usual and (gap := _gap(call)) is not None:
                gaps.append(gap)
        usual_gap = sorted(gaps)[len(gaps) // 2] if gaps else 0.0
        if own is not None and own - usual_gap < (usual - least) / NANO / 2:
            return
        self.lost += (usual - least) / NANO * of
        of_rank = self.tallies.of
        for rank, took in zip(calls, durations, strict=True):
            if took > least and (tally := of_rank(rank)) is not None:
                tally.waited += (took - least) / NANO * of
        if (tally := of_rank(last)) is not None:
            tally.waited_for += (usual - least) / NANO * of
            tally.came_last += of

    def _add_wait(
        self,
        sequence: int,
        at: float,
        calls: Mapping[int, RankCall | CompactCall],
        durations: list[float],
        usual: float,
        of: int,
    ) -> None:
        limits = self._limits
        late = [((usual - took) / NANO, rank) for rank, took in zip(calls, durations, strict=True)]
        late = sorted((one for one in late if one[0] >= limits.seconds), reverse=True)
        names = {rank for _, rank in late}
        gaps = sorted(gap for rank, call in calls.items() if rank not in names and (gap := _gap(call)) is not None)
        usual_gap = gaps[len(gaps) // 2] if gaps else 0.0
        own = [
            (rank, seconds)
            for seconds, rank in late
            if (gap := _gap(calls[rank])) is None or gap - usual_gap >= seconds / 2
        ]
        if not own or own[0][0] != late[0][1]:
            return
        self.total += late[0][0]
        events = self.events
        if events is None:
            if self._usage.watched >= MAX_WATCHED:
                return
            self._usage.watched += 1
            events = self.events = deque(maxlen=EVENTS)
            self.recent = deque(maxlen=EVENTS)
        if self.recent is not None:
            self.recent.append(Wait(at, own[0][0], late[0][0], of))
        if not events or at - events[-1].at >= limits.window / (EVENTS - 1):
            events.append(Event(at, late[0][0], tuple(own[:MAX_LATE]), sequence, self.measured, self.total))

    def _waited_share(self) -> float:
        """Share of the time that half of the group waited for its last rank, since the oldest event."""
        if not self.events:
            return 0.0
        oldest = self.events[0]
        measured, time = self.measured - oldest.measured, self.now - oldest.at
        if measured <= 0 or time <= 0:
            return 0.0
        each = (self.total - oldest.total) / measured
        return min(1.0, each * max(measured, self.sequence - oldest.sequence) / time)


@functools.cache
def may_be_chance(last: int, waits: int, members: int = 2) -> bool:
    """Whether one of the members may come last in so many of so many waits as dice fall (`CHANCE`).

    More than three count as three: in a large group too, only a few may be those that are held up now and then.
    """
    sides = 3 if members > 2 else 2
    ways = sum(math.comb(waits, count) * (sides - 1) ** (waits - count) for count in range(last, waits + 1))
    return bool(sides * ways > CHANCE * sides**waits)


def _durations(calls: Mapping[int, RankCall | CompactCall]) -> list[float] | None:
    """Nanoseconds from enqueueing to the end, in the order of the calls; None: that of one is not known."""
    try:
        # Nearly always all are compact; to ask each would take twice as long.
        return [end - start for _, _, _, _, _, start, end, _ in calls.values()]  # type: ignore[misc]
    except ValueError:  # a RankCall has more fields
        pass
    found: list[float] = []
    for call in map(expand, calls.values()):
        if call.duration is None or call.state is not CallState.COMPLETED:
            return None
        found.append(call.duration * NANO)
    return found


def _gap(call: RankCall | CompactCall) -> float | None:
    return call.gap if isinstance(call, RankCall) else call[-1]
