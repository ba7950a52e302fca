"""Whether a rank that others wait for may still join: it moves, and nobody has given it up."""

from __future__ import annotations

from functools import cached_property

from otel_fr.match.facts.instances import Instance, newest_calls
from otel_fr.match.facts.joined import gave_up
from otel_fr.match.model import UNENDED, Call, CallState, Ending, Evidence, Rank


class Patience:
    """What is known of ranks that move, for one judgement."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def of(self, instance: Instance) -> float:
        """Seconds without a movement in which a member may still join.

        The window, or if ranks ended by the timeout of their call, that: what a rank does in no call after it was
        given up does not matter to these.
        """
        seconds = self._evidence.window
        for call in (instance.call(r) for r in instance.calls):
            info = self._evidence.ranks.get(call.rank)
            if gave_up(call) and not call.left and info is not None and info.ending is not Ending.RUNNING:
                seconds = min(seconds, call.duration or seconds)
        return seconds

    def may_join(self, info: Rank, seconds: float) -> bool:
        """True if the rank is alive and has enqueued or ended a call within so many seconds, as `of` returns them.

        With a call in flight it may wait for another rank: within the window then, which begins when the rank's device
        or thread began to wait in that call. That may be long after the rank enqueued it.
        """
        if info.ending is not Ending.RUNNING or info.idle is None:
            return False
        if seconds >= self._evidence.window or info.rank in self._busy:
            return min(info.idle, self._waits_since.get(info.rank, info.idle)) < self._evidence.window
        return max(info.idle, self._since_its_newest(info.rank)) < seconds

    @cached_property
    def _busy(self) -> set[int]:
        return {call.rank for call in self._evidence.calls if call.state in UNENDED}

    @cached_property
    def _waits_since(self) -> dict[int, float]:
        """By rank, the age of the call in which its device or thread began to wait last."""
        found: dict[int, float] = {}
        for call in self._evidence.calls:
            if call.state is CallState.IN_FLIGHT and not call.queued and call.age:
                found[call.rank] = min(call.age, found.get(call.rank, call.age))
        return found

    @cached_property
    def _newest(self) -> dict[int, Call]:
        return newest_calls(self._evidence.calls)

    def _since_its_newest(self, rank: int) -> float:
        """Seconds since the end of the rank's newest call: a report may be late, and `Rank.idle` too short by that."""
        call = self._newest.get(rank)
        if call is None or call.age is None or call.duration is None:
            return 0.0
        return call.age - call.duration
