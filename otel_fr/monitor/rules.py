"""When a rank counts as stalled or idle, and when to report: functions of what is known and the time, nothing else.

All times are the rank's monotonic clock in nanoseconds (one clock per machine), all windows are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

EARLY = 0.8
"""Part of the stall window after which evidence is sent, so that the collector has it when the window ends."""
QUICK_FROM = 0.5
QUICK_UNTIL = 2.0
"""Parts of the stall window between which reports come quickly: the time in which verdicts fall."""
REPORT_SECONDS = 1.0
QUICK_REPORT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Situation:
    """What the decisions rest on.

    Attributes:
        moved_ns: when the rank last issued or ended a call; before its first: when it was first seen.
        oldest: record id of the oldest call that somebody may wait for, and ``oldest_since_ns`` since when; or None.
    """

    now_ns: int
    moved_ns: int
    oldest: int | None = None
    oldest_since_ns: int = 0


def seconds_between(start_ns: int, end_ns: int) -> float:
    return max(0.0, (end_ns - start_ns) / 1e9)


def stalled_call(situation: Situation, stall_seconds: float) -> int | None:
    """The record id of the call that has been in flight for too long, if there is one."""
    if situation.oldest is None:
        return None
    age = seconds_between(situation.oldest_since_ns, situation.now_ns)
    return situation.oldest if age >= EARLY * stall_seconds else None


def is_idle(situation: Situation, stall_seconds: float) -> bool:
    """Nothing is in flight and nothing has been issued for too long."""
    still = seconds_between(situation.moved_ns, situation.now_ns)
    return situation.oldest is None and still >= EARLY * stall_seconds


def report_interval(situation: Situation, stall_seconds: float) -> float:
    """Seconds from one progress report to the next."""
    still = seconds_between(situation.moved_ns, situation.now_ns)
    quick = QUICK_FROM * stall_seconds <= still <= QUICK_UNTIL * stall_seconds
    return QUICK_REPORT_SECONDS if quick else REPORT_SECONDS


class Episodes:
    """Says each episode once: a stall is one per oldest call, an idle time one per last movement."""

    def __init__(self) -> None:
        self._stalled: int | None = None
        self._idle: int | None = None

    def new_stall(self, situation: Situation, stall_seconds: float) -> int | None:
        """The stalled call, the first time it is asked about."""
        call = stalled_call(situation, stall_seconds)
        if call is None or call == self._stalled:
            return None
        self._stalled = call
        return call

    def new_idle(self, situation: Situation, stall_seconds: float) -> bool:
        if not is_idle(situation, stall_seconds) or self._idle == situation.moved_ns:
            return False
        self._idle = situation.moved_ns
        return True
