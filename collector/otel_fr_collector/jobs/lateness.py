"""How far the collector is behind what ranks have sent: in that time, no rank's silence counts, and reports are old.

Two things show it. A collector that is blocked, or whose requests wait for their turn, notices that. What waits
outside of it (in sockets, in gRPC, in a gateway) shows in the reports that do come: by the clock of the rank's machine
each says when it was made, so one that took longer to come than that rank's quickest report was late by the difference.
Where requests wait from the start, as after a restart below a large job, no report is quick. But a monitor sends its
next report only when the last one has been answered: reports that are made later than announced show it then. The
clocks of two machines are never compared.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from otel_fr_collector import timeline

STEPS = 2
"""Resolution of lags, in steps a second; a lag below one step counts as none."""
MAX_STEP = int(timeline.MAX_BEHIND * STEPS)
_WIDTH = MAX_STEP + 1
SHARE = 10
"""One rank of so many may be later than the lag of its run: its machine or its link is slow, not the collector."""


@dataclass(slots=True)
class Delay:
    """How long the reports of one rank take to come, as the difference of two clocks whose offset is not known.

    Attributes:
        least, least_before: the quickest report since ``since`` (monotonic), and in the time before that.
        stamp: of the latest report.
        held: seconds by which that was made later than the one before it had announced.
    """

    least: float = math.inf
    least_before: float = math.inf
    since: float = -math.inf
    stamp: float = -math.inf
    held: float = 0.0

    def lag(self, stamp: float, now: float, announced: float = math.inf) -> float:
        """Seconds by which a report came later than the quickest one; reports are given in the order of their numbers.

        Args:
            stamp: when it was made, in seconds by its sender's clock.
            now: monotonic.
            announced: the longest time from the report before to this one, in seconds.
        """
        took = now - stamp
        held = stamp - self.stamp - announced
        self.held = held if 0.0 < held < math.inf else 0.0
        if stamp < self.stamp:  # the clock was set back
            self.least = self.least_before = took
            self.since = now
        elif now - self.since > timeline.QUICKEST_SECONDS:
            self.least_before, self.least, self.since = self.least, took, now
        elif took < self.least:
            self.least = took
        self.stamp = stamp
        return took - min(self.least, self.least_before)


class Lags:
    """Of one run: by how much the reports of the last seconds came late, and were made late."""

    __slots__ = ("_late", "_latest", "_second", "_seconds", "floor", "gap")

    def __init__(self) -> None:
        self._second = 0
        self._latest = -math.inf
        self.gap: tuple[float, float] | None = None
        """The last time without a report that was longer than `timeline.OUTAGE`: its begin and its end (monotonic)."""
        self.floor = 0.0
        """After a restart or an outage, all ranks had been heard again by then, so no silence counts from earlier
        (monotonic): those that were heard first may have waited for an answer until then."""
        self._seconds: deque[dict[int, int]] = deque()
        """For each of the last seconds, how many reports came so late, in steps times `_WIDTH`, and were made so late,
        in steps."""
        self._late = 0

    def note(self, lag: float, now: float, held: float = 0.0) -> None:
        """A report has come. ``lag``: by how much it came late; ``held``: was made late. ``now``: monotonic."""
        if now - self._latest > timeline.OUTAGE and self._seconds:
            self.gap = self._latest, now
        if int(now) > self._second:
            self._go_on_to(int(now))
        elif not self._seconds:
            self._seconds.append({})
        of_second, steps = self._seconds[-1], 0
        if lag >= 1.0 / STEPS or held >= 1.0 / STEPS:
            steps = min(int(lag * STEPS), MAX_STEP) * _WIDTH + min(int(held * STEPS), MAX_STEP)
            self._late += 1
        of_second[steps] = of_second.get(steps, 0) + 1
        self._latest = now

    def recent(self, now: float) -> float:
        """Seconds; 0 if nearly all came in time, or none came. While none comes, the next one is later by as much."""
        late = self._usual(now, lambda steps: steps // _WIDTH)
        return late + max(0.0, now - self._latest) if late else 0.0

    def answered_after(self, now: float) -> float:
        """Seconds by which monitors could send their reports later than announced, for the last was not answered."""
        return self._usual(now, lambda steps: steps % _WIDTH)

    def quiet(self, now: float) -> float:
        """Seconds without a report from any rank, beyond the usual pause: perhaps the collector reads nothing."""
        seconds = now - self._latest
        return seconds - timeline.QUIET if timeline.QUIET < seconds <= timeline.RECENT else 0.0

    def _usual(self, now: float, part: Callable[[int], int]) -> float:
        """Seconds by which more than one report of `SHARE` was late; 0 if nearly all were in time, or none came."""
        if int(now) > self._second:
            self._go_on_to(int(now))
        if not self._late:
            return 0.0
        found: Counter[int] = Counter()
        for of_second in self._seconds:
            for steps, count in of_second.items():
                found[part(steps)] += count
        later, total = 0, found.total()
        for step in sorted(found, reverse=True):
            later += found[step]
            if later * SHARE > total:
                return (step + 1) / STEPS if step else 0.0
        return 0.0

    def _go_on_to(self, second: int) -> None:
        for _ in range(min(second - self._second, timeline.RECENT)):
            if len(self._seconds) == timeline.RECENT:
                gone = self._seconds.popleft()
                self._late -= sum(gone.values()) - gone.get(0, 0)
            self._seconds.append({})
        self._second = second


class Attention:
    """Of the collector itself: the time that it was blocked lately, and how long a request waits for its turn now.

    Attributes:
        waiting: seconds for which the oldest request with reports has waited.
        floor: the collector was blocked until then (monotonic), so no rank's silence counts from earlier.
    """

    def __init__(self) -> None:
        self.floor = 0.0
        self._lost: deque[tuple[float, float]] = deque()
        self.waiting: Callable[[], float] = lambda: 0.0

    def step(self, gap: float, now: float) -> None:
        """A step of the collector begins. ``gap``: seconds since the one before; ``now``: monotonic."""
        while self._lost and now - self._lost[0][0] > timeline.LOST_SECONDS:
            self._lost.popleft()
        if gap > timeline.MAX_TICK_GAP:
            self.floor = now
        elif gap > timeline.TICK_GAP:
            self._lost.append((now, gap))

    def behind(self) -> float:
        """Seconds."""
        return sum(gap for _, gap in self._lost) + self.waiting()
