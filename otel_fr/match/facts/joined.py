"""Collectives that all members joined: which calls are blocked, and which came after their peers had given up."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from otel_fr.match.facts.machines import are_silent
from otel_fr.match.model import UNENDED, Call, CallState, Evidence

WAITED_OUT = 0.95
"""Share of its timeout after which a call that ended, or whose rank was aborted, counts as timed out."""


UNSEEN_BEGIN: Final = 30.0
"""Seconds for which calls are in flight, and nothing else moves, before they count as blocked where it is not known
whether devices have begun them: these may compute, while their hosts are far ahead of them."""


def is_stalled(calls: list[Call], evidence: Evidence, aborted: Container[int]) -> bool:
    """True if the calls of all members are blocked, as far as their backends show when they end.

    Args:
        aborted: ranks that a watchdog ended. Then the launcher ends the others, which also waited for the timeout.
    """
    is_aborted = any(call.rank in aborted and _timed_out(call) for call in calls)
    blocked = [_is_blocked(call, evidence) or (is_aborted and _timed_out(call)) for call in calls]
    return any(blocked) and all(
        is_blocked or call.state is CallState.UNKNOWN or are_silent(evidence, [call.rank])
        for call, is_blocked in zip(calls, blocked, strict=True)
    )


def is_connecting(calls: list[Call]) -> bool:
    """True if all members create a process group, and none has given up.

    Then they connect to each other, which takes minutes with thousands of ranks (NCCL's communicators).
    """
    return all(call.signature.new_group is not None and call.state is not CallState.FAILED for call in calls)


def stragglers(calls: list[Call], aborted: Container[int]) -> list[Call]:
    """Calls that were enqueued after their peers had timed out, judged by each rank's own clock.

    The peers waited for their full timeout, or until a watchdog aborted them; the late rank spent about that long or
    longer between its previous call and this one.
    """
    ended = [
        c for c in calls if gave_up(c) or (c.rank in aborted and c.state is not CallState.COMPLETED and not c.left)
    ]
    if not ended or len(ended) == len(calls):
        return []
    patience = min(c.lasted or 0.0 for c in ended)
    return [c for c in calls if c not in ended and c.gap is not None and patience > 0 and c.gap >= 0.9 * patience]


def _is_blocked(call: Call, evidence: Evidence) -> bool:
    """It failed, or is known to have been in flight for long enough."""
    if call.state is not CallState.IN_FLIGHT or call.queued or call.age is None:
        return call.state is CallState.FAILED
    if call.queued is False:
        return call.age >= evidence.window
    info = evidence.ranks.get(call.rank)
    still = call.age if info is None or info.idle is None else min(call.age, info.idle)
    return still >= max(evidence.window, UNSEEN_BEGIN)


def _timed_out(call: Call) -> bool:
    """A call whose end, or begin, is not shown had not ended, if a rank was aborted at its timeout."""
    return (
        call.state in UNENDED
        and call.timeout is not None
        and call.age is not None
        and call.age >= WAITED_OUT * call.timeout > 0
    )


def gave_up(call: Call) -> bool:
    """It failed at its timeout."""
    return call.state is CallState.FAILED and (call.error == "timeout" or is_too_long(call))


def is_too_long(call: Call) -> bool:
    """It ended, and had lasted for its timeout by then."""
    return call.timeout is not None and call.duration is not None and call.duration >= WAITED_OUT * call.timeout > 0


def failed_at_once(call: Call, window: float) -> bool:
    """It failed, before its timeout and before it had lasted for the window."""
    if call.state is not CallState.FAILED or gave_up(call) or call.duration is None:
        return False
    return call.duration < window


def failed_late(call: Call, window: float) -> bool:
    """It failed after it had lasted for the window, and its rank did not catch that.

    Of a message that says nothing: nobody may have waited for it.
    """
    is_caught = call.caught or call.stream == "p2p"
    return call.state is CallState.FAILED and not is_caught and call.duration is not None and call.duration >= window
