"""How far the collector is behind the ranks. Silence within that time does not count, and reports are that old.

* Inside the collector: it notices that it was blocked, or that requests wait for their turn.
* Outside (in sockets, in gRPC, in a gateway): each report has the time at which it was made, by the clock of the rank's
  machine. A report that takes longer to arrive than the rank's quickest one is late by the difference.
* From the start, for example after a restart under a large job: no report is quick. But a monitor sends its next report
  only when the last one has been answered, so reports are made later than announced.

The clocks of two machines are never compared.
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
"""One report in this many may be later than the lag of its run: a machine or a link is slow then, not the collector."""


@dataclass(slots=True)
class Delay:
    """How long the reports of one rank take to arrive, as the difference of two clocks whose offset is not known.

    Attributes:
        least, least_before: the quickest report since ``since`` (monotonic), and in the period before that.
        stamp: when the latest report was made, by its sender's clock.
        held: seconds by which it was made later than the previous report had announced.
    """

    least: float = math.inf
    least_before: float = math.inf
    since: float = -math.inf
    stamp: float = -math.inf
    held: float = 0.0

    def lag(self, stamp: float, now: float, announced: float = math.inf) -> float:
        """Seconds by which a report came later than the quickest one. Call it in the order of the reports' numbers.

        Args:
            stamp: when it was made, in seconds by its sender's clock.
            now: monotonic.
            announced: longest time from the previous report to this one, in seconds.
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
    """How late the reports of one run arrived in the last seconds, and how late they were made."""

    __slots__ = ("_late", "_latest", "_second", "_seconds", "floor", "gap")

    def __init__(self) -> None:
        self._second = 0
        self._latest = -math.inf
        self.gap: tuple[float, float] | None = None
        """The last time without a report that was longer than `timeline.OUTAGE`: its begin and its end (monotonic)."""
        self.floor = 0.0
        """When all ranks had been heard again after a restart or an outage (monotonic). Earlier silence does not count:
        ranks that were heard first may have waited for an answer until then."""
        self._seconds: deque[dict[int, int]] = deque()
        """For each of the last seconds, the number of reports by how late they were: the steps by which they arrived
        late, times `_WIDTH`, plus the steps by which they were made late."""
        self._late = 0

    def note(self, lag: float, now: float, held: float = 0.0) -> None:
        """Note a report. ``lag``, ``held``: seconds by which it arrived late, and was made late. ``now``: monotonic."""
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
        """Seconds by which reports arrive late; 0 if nearly all are in time, or none came. It grows between reports."""
        late = self._usual(now, lambda steps: steps // _WIDTH)
        return late + max(0.0, now - self._latest) if late else 0.0

    def answered_after(self, now: float) -> float:
        """Seconds by which monitors send reports later than announced, because the last one was not answered."""
        return self._usual(now, lambda steps: steps % _WIDTH)

    def quiet(self, now: float) -> float:
        """Seconds without a report from any rank, beyond the usual pause: perhaps the collector reads nothing."""
        seconds = now - self._latest
        return seconds - timeline.QUIET if timeline.QUIET < seconds <= timeline.RECENT else 0.0

    def _usual(self, now: float, part: Callable[[int], int]) -> float:
        """Seconds by which more than one report in `SHARE` was late; 0 if nearly all were in time, or none came."""
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
    """How far the collector itself is behind: how long it was blocked lately, and how long a request waits now.

    Attributes:
        waiting: returns the seconds for which the oldest request with reports has waited.
        floor: monotonic time until which the collector was blocked. Earlier silence of a rank does not count.
    """

    def __init__(self) -> None:
        self.floor = 0.0
        self._lost: deque[tuple[float, float]] = deque()
        self.waiting: Callable[[], float] = lambda: 0.0

    def step(self, gap: float, now: float) -> None:
        """Note that a step of the collector begins. ``gap``: seconds since the previous one; ``now``: monotonic."""
        while self._lost and now - self._lost[0][0] > timeline.LOST_SECONDS:
            self._lost.popleft()
        if gap > timeline.MAX_TICK_GAP:
            self.floor = now
        elif gap > timeline.TICK_GAP:
            self._lost.append((now, gap))

    def behind(self) -> float:
        """Seconds by which the collector is behind."""
        return sum(gap for _, gap in self._lost) + self.waiting()
