"""The state of a call (waiting, given up, refused at once), each rank's newest call, and what members' calls show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

from otel_fr.match.facts.machines import are_silent
from otel_fr.match.model import UNENDED, Call, CallState, Evidence
from otel_fr.operations import way


def pair_of(call: Call) -> tuple[int, int] | None:
    """(source, destination) of a send or receive; None for a receive from any source."""
    if call.signature.any_source or call.signature.peer is None:
        return None
    return way(call.signature.operation, call.rank, call.signature.peer)


def is_incomplete(call: Call) -> bool:
    """True if it is known that the call has not completed."""
    return call.state in (CallState.IN_FLIGHT, CallState.FAILED)


def is_posted(call: Call) -> bool:
    """True if the call is a message in flight for which no thread waits."""
    return call.stream == "p2p" and call.age == 0.0


def is_waiting(call: Call, window: float) -> bool:
    """True if the call has been in flight for ``window`` seconds, or failed and its rank did not catch the failure.

    A call in flight of unknown age is waiting. A message for which no thread waits (its age is 0) is not, however short
    the window is. A call that its device has not begun is waiting only if the window is 0, because a member has ended.
    """
    if call.state is CallState.FAILED:
        return not call.caught
    if is_posted(call):
        return False
    if call.queued and window > 0:
        return False
    return call.state in UNENDED and (call.age is None or call.age >= window)


class LastCall(NamedTuple):
    """A rank's newest call. ``in_call``: one of the rank's calls has been in flight for longer than the window."""

    call: Call
    in_call: bool


def newest_calls(calls: Iterable[Call]) -> dict[int, Call]:
    """Return each rank's newest call."""
    found: dict[int, Call] = {}
    for call in calls:
        if call.rank not in found or call.record > found[call.rank].record:
            found[call.rank] = call
    return found


def last_calls(calls: Sequence[Call], window: float) -> dict[int, LastCall]:
    """Return each rank's newest call, and whether a call of the rank has been in flight for longer than the window."""
    open_ = {call.rank for call in calls if call.state is not CallState.FAILED and is_waiting(call, window)}
    return {rank: LastCall(call, rank in open_) for rank, call in newest_calls(calls).items()}


WAITED_OUT = 0.95
"""Share of its timeout after which a call that ended, or whose rank was aborted, counts as timed out."""


UNSEEN_BEGIN: Final = 30.0
"""Seconds after which calls in flight count as blocked if nothing else moves and it is unknown whether devices have
begun them. Until then, devices may be computing, with their hosts far ahead of them."""


def is_stalled(calls: list[Call], evidence: Evidence, aborted: Container[int]) -> bool:
    """True if the calls of all members are blocked, as far as backends show when calls end.

    Args:
        aborted: ranks that a watchdog ended. The launcher then ends the others, which also waited for the timeout.
    """
    is_aborted = any(call.rank in aborted and _timed_out(call) for call in calls)
    blocked = [_is_blocked(call, evidence) or (is_aborted and _timed_out(call)) for call in calls]
    return any(blocked) and all(
        is_blocked or call.state is CallState.UNKNOWN or are_silent(evidence, [call.rank])
        for call, is_blocked in zip(calls, blocked, strict=True)
    )


def is_connecting(calls: list[Call]) -> bool:
    """True if all members create a process group, and none has given up.

    They connect to each other, which takes minutes with thousands of ranks (NCCL's communicators).
    """
    return all(call.signature.new_group is not None and call.state is not CallState.FAILED for call in calls)


def stragglers(calls: list[Call], aborted: Container[int]) -> list[Call]:
    """Return the calls that were enqueued after their peers had timed out, judged by each rank's own clock.

    The peers waited for their full timeout, or until a watchdog aborted them. The late rank spent at least 90 % of that
    time between its previous call and this one.
    """
    ended = {
        c.rank: c.lasted or 0.0
        for c in calls
        if gave_up(c) or (c.rank in aborted and c.state is not CallState.COMPLETED and not c.left)
    }
    patience = min(ended.values(), default=0.0)
    return [c for c in calls if c.rank not in ended and c.gap is not None and patience > 0 and c.gap >= 0.9 * patience]


def _is_blocked(call: Call, evidence: Evidence) -> bool:
    """True if the call failed, or is known to have been in flight for long enough."""
    if call.state is not CallState.IN_FLIGHT or call.queued or call.age is None:
        return call.state is CallState.FAILED
    if call.queued is False:
        return call.age >= evidence.window
    info = evidence.ranks.get(call.rank)
    still = call.age if info is None or info.idle is None else min(call.age, info.idle)
    return still >= max(evidence.window, UNSEEN_BEGIN)


def _timed_out(call: Call) -> bool:
    """True if the call is not known to have ended, and has lasted for its timeout.

    If a rank was aborted at its timeout, such a call had not ended, even if its backend does not show when calls begin
    or end.
    """
    return (
        call.state in UNENDED
        and call.timeout is not None
        and call.age is not None
        and call.age >= WAITED_OUT * call.timeout > 0
    )


def gave_up(call: Call) -> bool:
    """True if the call failed at its timeout."""
    return call.state is CallState.FAILED and (call.error == "timeout" or is_too_long(call))


def is_too_long(call: Call) -> bool:
    """True if the call has ended, and had lasted for its timeout by then."""
    return call.timeout is not None and call.duration is not None and call.duration >= WAITED_OUT * call.timeout > 0


def failed_at_once(call: Call, window: float) -> bool:
    """True if the call failed before its timeout and before it had lasted for the window."""
    if call.state is not CallState.FAILED or gave_up(call) or call.duration is None:
        return False
    return call.duration < window


def failed_late(call: Call, window: float) -> bool:
    """True if the call failed after it had lasted for the window, and its rank did not catch the failure.

    Always False for messages: nobody may have waited for one.
    """
    is_caught = call.caught or call.stream == "p2p"
    return call.state is CallState.FAILED and not is_caught and call.duration is not None and call.duration >= window


def sharing(calls: Iterable[Call]) -> dict[str, dict[tuple[str, ...], list[int]]]:
    """Return group id -> names of threads -> ranks with unfinished collectives of several threads in the group.

    A thread without a name of its own counts as the main thread (`Call.thread`).
    """
    calls = [call for call in calls if call.state is not CallState.COMPLETED and call.stream == "collective"]
    groups = {call.group for call in calls if call.thread}
    threads: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for call in calls:
        if call.group in groups and not call.signature.destroys:
            threads[call.group, call.rank].add(call.thread)
    found: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for (group, rank), names in sorted(threads.items()):
        if len(names) > 1:
            found.setdefault(group, {}).setdefault(tuple(sorted(names)), []).append(rank)
    return found
