"""When a rank counts as stalled or idle, and when to report: functions of the rank's situation and the time only.

All times are the rank's monotonic clock in nanoseconds (one clock per machine), stall times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_fr.config import STALL_SHARE

QUICK_FROM = 0.5
QUICK_UNTIL = 2.0
"""Fractions of the stall time between which reports are sent more often: the collector judges in that time."""
RECOVERED_SECONDS = 1.0
"""How long a rank moves again before its file of a fault is replaced: by then its peers move, too."""
RECOVERED_EVERY_SECONDS = 30.0
"""Shortest time between two such files: a program may catch a failed call every second, for as long as it runs."""
REPORT_SECONDS = 1.0
QUICK_REPORT_SECONDS = 0.25
WAIT_SECONDS, STILL_SECONDS = 0.5, 1.0
"""How long a call is in flight, or nothing moves, from which a rank does not move as usual."""
CROWD = 1_024
"""Ranks of a job up to which each one that waits says so at once. In larger jobs nearly all ranks wait when one does
not come: only `WITNESSES` of each group do, the others' counts show it when they report next."""
WITNESSES = 8
SPARSE_RANKS = 16_384
"""Ranks of a job up to which a rank that has just begun to move reports each second. The interval grows with larger
jobs, and from twice as many on the longest one does too, up to twice."""
USUAL_SHARE = 12.0
"""Seconds for which a rank has moved as usual, for each second between two of its reports."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rules decide on.

    Attributes:
        moved_ns: when the rank last enqueued or ended a call; before its first call: when the monitor started.
        oldest: record id of the call that may have been waited for longest; None: there is none.
        oldest_since_ns: since when it may have been waited for.
        is_witness: whether the rank says at once that it waits in that call (`otel_fr.monitor.witness`).
    """

    now_ns: int
    moved_ns: int
    oldest: int | None = None
    oldest_since_ns: int = 0
    is_witness: bool = True


def seconds_between(start_ns: int, end_ns: int) -> float:
    return max(0.0, (end_ns - start_ns) / 1e9)


def stalled_call(situation: Situation, stall_seconds: float) -> int | None:
    """The record id of the call that has been in flight for too long, if there is one."""
    if situation.oldest is None:
        return None
    age = seconds_between(situation.oldest_since_ns, situation.now_ns)
    return situation.oldest if age >= STALL_SHARE * stall_seconds else None


def is_idle(situation: Situation, stall_seconds: float) -> bool:
    """Nothing is in flight and nothing has been enqueued for too long."""
    still = seconds_between(situation.moved_ns, situation.now_ns)
    return situation.oldest is None and still >= STALL_SHARE * stall_seconds


def report_interval(situation: Situation, stall_seconds: float) -> float:
    """Seconds from one progress report to the next, of a rank about which only this is known."""
    still = seconds_between(situation.moved_ns, situation.now_ns)
    quick = QUICK_FROM * stall_seconds <= still <= QUICK_UNTIL * stall_seconds
    return QUICK_REPORT_SECONDS if quick else REPORT_SECONDS


def sparseness(world_size: int) -> float:
    """How many times as long the intervals between reports are as in jobs of up to `SPARSE_RANKS`."""
    return max(1.0, world_size / SPARSE_RANKS)


class Cadence:
    """How often progress is reported: more and more seldom while a rank moves as usual, if the collector allows it.

    Attributes:
        most: the longest interval that the collector takes for life, seconds; from any thread.
    """

    def __init__(self, stall_seconds: float, peer_timeout: float, world_size: int) -> None:
        self._stall = stall_seconds
        # Two reports within the time after which others may give the rank up, or are judged to wait for it; of the
        # largest jobs one.
        share = min(1.0, max(0.5, sparseness(world_size) / 4))
        self._most = max(REPORT_SECONDS, min(stall_seconds, peer_timeout) * share)
        self._least = REPORT_SECONDS * sparseness(world_size)
        self._longest_wait = min(WAIT_SECONDS, QUICK_FROM * stall_seconds)
        self._longest_still = min(STILL_SECONDS, QUICK_FROM * stall_seconds)
        self._usual_since_ns: int | None = None
        self.most = REPORT_SECONDS

    def interval(self, situation: Situation) -> float:
        """Seconds from one progress report to the next."""
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
    """Returns each episode once: one stall for each oldest call, one idle time for each last movement."""

    def __init__(self) -> None:
        self._stalled: int | None = None
        self._idle: int | None = None

    def new_stall(self, situation: Situation, stall_seconds: float) -> int | None:
        """The stalled call, the first time that it counts as stalled."""
        call = stalled_call(situation, stall_seconds)
        if call is None or call == self._stalled:
            return None
        self._stalled = call
        return call

    def new_idle(self, situation: Situation, stall_seconds: float) -> bool:
        """True the first time in an idle time that the rank counts as idle."""
        if not is_idle(situation, stall_seconds) or self._idle == situation.moved_ns:
            return False
        self._idle = situation.moved_ns
        return True


class Recovery:
    """Whether the newest file shows a fault that is over: it would accuse a rank that came late, but did come."""

    def __init__(self) -> None:
        self._moved_ns: int | None = None
        self._over_ns: int | None = None
        self._not_before_ns = 0

    def note_file(self, moved_ns: int, of_fault: bool) -> None:
        """A file is written now. ``moved_ns``: as in `Situation`."""
        self._moved_ns, self._over_ns = (moved_ns if of_fault else None), None

    @property
    def is_pending(self) -> bool:
        """The newest file was written for a fault."""
        return self._moved_ns is not None

    def is_of(self, moved_ns: int) -> bool:
        """The newest file was written for a fault, and the rank has not moved since."""
        return self._moved_ns is not None and moved_ns <= self._moved_ns

    def is_over(self, situation: Situation, stall_seconds: float) -> bool:
        """True, at most every 30 s, if the rank has moved since that file was written and has no stalled call."""
        if self._moved_ns is None or situation.moved_ns <= self._moved_ns:
            return False
        self._over_ns = self._over_ns or situation.now_ns
        moves = seconds_between(self._over_ns, situation.now_ns) >= RECOVERED_SECONDS
        if not moves or situation.now_ns < self._not_before_ns or stalled_call(situation, stall_seconds) is not None:
            return False
        self._not_before_ns = situation.now_ns + int(RECOVERED_EVERY_SECONDS * 1e9)
        return True
