"""Decides when a rank counts as stalled or idle, and when to report, only from the rank's situation and the time.

Times are in nanoseconds of the monotonic clock, which all processes of a machine share. Stall times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_fr.config import STALL_SHARE

QUICK_FROM = 0.5
QUICK_UNTIL = 2.0
"""Fractions of the stall time between which reports are sent more often: the collector judges during this time."""
RECOVERED_SECONDS = 1.0
"""How long a rank must move again before the file of its fault is replaced. By then its peers move, too."""
RECOVERED_EVERY_SECONDS = 30.0
"""Shortest time between two such replacements. A program may catch a failed call every second, for as long as it runs.
"""
REPORT_SECONDS = 1.0
QUICK_REPORT_SECONDS = 0.25
WAIT_SECONDS, STILL_SECONDS = 0.5, 1.0
"""A rank does not move as usual once a call is in flight, or nothing moves, for this long."""
CROWD = 1_024
"""Largest job in which every waiting rank reports at once. In a larger job, nearly all ranks wait if one does not come.
Then only `WITNESSES` ranks of each group report at once. The counts in the others' next reports show that they wait."""
WITNESSES = 8
SPARSE_RANKS = 16_384
"""Largest job in which a rank that has just begun to move reports every second. In larger jobs the interval is longer.
From twice as many ranks on, the longest interval grows, too, up to twice its length."""
USUAL_SHARE = 12.0
"""The interval between reports is the time for which a rank has moved as usual, divided by this."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rules need to know about a rank.

    Attributes:
        moved_ns: when the rank last enqueued or ended a call; before its first call, when the monitor started.
        oldest: record id of the call for which a thread may have waited longest; None: there is none.
        oldest_since_ns: since when a thread may have waited for this call.
        is_witness: True if the rank reports at once that it waits in this call (`otel_fr.monitor.witness`).
    """

    now_ns: int
    moved_ns: int
    oldest: int | None = None
    oldest_since_ns: int = 0
    is_witness: bool = True


def seconds_between(start_ns: int, end_ns: int) -> float:
    """Return the seconds from start to end, to the microsecond; 0 if the end is not after the start."""
    return round(max(0, end_ns - start_ns) / 1e9, 6)


def stalled_call(situation: Situation, stall_seconds: float) -> int | None:
    """Return the record id of the call that has been in flight for too long, or None."""
    if situation.oldest is None:
        return None
    age = seconds_between(situation.oldest_since_ns, situation.now_ns)
    return situation.oldest if age >= STALL_SHARE * stall_seconds else None


def is_idle(situation: Situation, stall_seconds: float) -> bool:
    """Return True if nothing is in flight and nothing has been enqueued for too long."""
    still = seconds_between(situation.moved_ns, situation.now_ns)
    return situation.oldest is None and still >= STALL_SHARE * stall_seconds


def report_interval(situation: Situation, stall_seconds: float) -> float:
    """Return the seconds between two progress reports, from the situation alone."""
    still = seconds_between(situation.moved_ns, situation.now_ns)
    quick = QUICK_FROM * stall_seconds <= still <= QUICK_UNTIL * stall_seconds
    return QUICK_REPORT_SECONDS if quick else REPORT_SECONDS


def sparseness(world_size: int) -> float:
    """Return the factor by which intervals between reports are longer than in jobs of up to `SPARSE_RANKS` ranks."""
    return max(1.0, world_size / SPARSE_RANKS)


class Cadence:
    """Decides how often progress is reported: less and less often while a rank moves as usual, if the collector agrees.

    Attributes:
        most: the longest interval, in seconds, that the collector allows. May be set from any thread.
    """

    def __init__(self, stall_seconds: float, peer_timeout: float, world_size: int) -> None:
        self._stall = stall_seconds
        # Two reports, or one in the largest jobs, before others may give up the rank or count as waiting for it.
        share = min(1.0, max(0.5, sparseness(world_size) / 4))
        self._most = max(REPORT_SECONDS, min(stall_seconds, peer_timeout) * share)
        self._least = REPORT_SECONDS * sparseness(world_size)
        self._longest_wait = min(WAIT_SECONDS, QUICK_FROM * stall_seconds)
        self._longest_still = min(STILL_SECONDS, QUICK_FROM * stall_seconds)
        self._usual_since_ns: int | None = None
        self.most = REPORT_SECONDS

    def interval(self, situation: Situation) -> float:
        """Return the seconds from one progress report to the next."""
        now_ns = situation.now_ns
        still = seconds_between(situation.moved_ns, now_ns)
        wait = 0.0 if situation.oldest is None else seconds_between(situation.oldest_since_ns, now_ns)
        if situation.is_witness and (wait >= self._longest_wait or still >= self._longest_still):
            self._usual_since_ns = None
            return report_interval(situation, self._stall)
        if self._usual_since_ns is None:
            self._usual_since_ns = now_ns
        usual = seconds_between(self._usual_since_ns, now_ns)
        return max(REPORT_SECONDS, min(max(self._least, usual / USUAL_SHARE), self._most, self.most))


class Episodes:
    """Reports each episode once: one stall for each oldest call, and one idle time for each last movement."""

    def __init__(self) -> None:
        self._stalled: int | None = None
        self._idle: int | None = None

    def new_stall(self, situation: Situation, stall_seconds: float) -> int | None:
        """Return the stalled call the first time that it counts as stalled, else None."""
        call = stalled_call(situation, stall_seconds)
        if call is None or call == self._stalled:
            return None
        self._stalled = call
        return call

    def new_idle(self, situation: Situation, stall_seconds: float) -> bool:
        """Return True the first time that the rank counts as idle since it last moved."""
        if not is_idle(situation, stall_seconds) or self._idle == situation.moved_ns:
            return False
        self._idle = situation.moved_ns
        return True


class Recovery:
    """Decides whether the newest file shows a fault that is over, because it would accuse a rank that was only late."""

    def __init__(self) -> None:
        self._moved_ns: int | None = None
        self._over_ns: int | None = None
        self._not_before_ns = 0

    def note_file(self, moved_ns: int, of_fault: bool) -> None:
        """Note that a file is written now. ``moved_ns``: see `Situation`.

        A file that is requested during a fault, for example for the verdict, also shows the fault.
        """
        self._moved_ns, self._over_ns = (moved_ns if of_fault or self.is_of(moved_ns) else None), None

    @property
    def is_pending(self) -> bool:
        """True if the newest file was written for a fault."""
        return self._moved_ns is not None

    def is_of(self, moved_ns: int) -> bool:
        """Return True if the newest file was written for a fault and the rank has not moved since."""
        return self._moved_ns is not None and moved_ns <= self._moved_ns

    def is_over(self, situation: Situation, stall_seconds: float) -> bool:
        """Return True, at most every 30 s, if the rank has moved for a second since that file was written.

        The rank must have no stalled call.
        """
        if self._moved_ns is None or situation.moved_ns <= self._moved_ns:
            return False
        self._over_ns = self._over_ns or situation.now_ns
        moves = seconds_between(self._over_ns, situation.now_ns) >= RECOVERED_SECONDS
        if not moves or situation.now_ns < self._not_before_ns or stalled_call(situation, stall_seconds) is not None:
            return False
        self._not_before_ns = situation.now_ns + int(RECOVERED_EVERY_SECONDS * 1e9)
        return True
