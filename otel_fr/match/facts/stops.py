"""Ranks that were stopped from outside, by their user (Ctrl-C) or whoever ends their launcher, and what shows it."""

from __future__ import annotations

import math
from collections.abc import Collection

from otel_fr.communication_errors import is_communication
from otel_fr.match.facts.calls import failed_at_once, is_waiting
from otel_fr.match.facts.instances import Instance
from otel_fr.match.facts.known import Facts
from otel_fr.match.facts.ranks import by_user, may_be_cleared_away, was_stopped
from otel_fr.match.model import Call, CallState, Ending, Rank

KILL_GRACE = 2.0
"""Least seconds that launchers wait between SIGTERM and SIGKILL; torchrun, Slurm and Kubernetes wait for 30 s."""
REACTION = 1.0
"""Seconds by which a rank may be killed before another rank has reacted to the same Ctrl-C. A rank that waits in a call
reacts once the call fails, for example by the end of the killed rank."""


def were_killed_together(ranks: Collection[Rank], world_size: int | None) -> bool:
    """True if all ranks of the job were killed at once, as users end jobs (``pkill -9``, scancel in the end).

    Each rank's time is measured by its own clock, since it last moved.
    """
    idle = [info.idle for info in ranks if may_be_cleared_away(info) and info.idle is not None]
    return 1 < len(ranks) == world_size == len(idle) and max(idle) - min(idle) <= KILL_GRACE


def cleared_away(facts: Facts, candidates: set[int]) -> set[int]:
    """Return the candidates that were killed because they did not react to what had stopped others.

    A rank does not react while it waits in a call, or if its Python does not run. Each rank's time is measured by its
    own clock, from the end of its previous call.
    """
    evidence = facts.evidence
    killed = {r for r in candidates if may_be_cleared_away(evidence.ranks[r])}
    stopped = {r for r, info in evidence.ranks.items() if was_stopped(info)}
    ranks = killed | stopped if killed and stopped else set()
    found: set[int] = set()
    for instance in facts.instances.values() if ranks else ():
        own = ranks.intersection(instance.members)
        times = {r: time for r in own if (time := _time_until(facts, instance, r)) is not None}
        earliest = min(
            (times[r] + (-REACTION if by_user(evidence.ranks[r]) else KILL_GRACE) for r in stopped.intersection(times)),
            default=math.inf,
        )
        found.update(r for r in killed.intersection(times) if times[r] >= max(earliest, KILL_GRACE))
    return found


def _time_until(facts: Facts, instance: Instance, rank: int) -> float | None:
    """Return the seconds from the end of the previous call until the rank was killed, or reacted to what stopped it.

    None: it did neither in this call nor before it, or that is unknown.
    """
    if rank not in facts.lasts or instance.p2p:
        return None
    newest, info = facts.lasts[rank].call, facts.evidence.ranks[rank]
    if _is_next(instance, newest):
        return info.idle
    call = instance.call(rank) if rank in instance.calls else None
    if call is not newest or call.state is CallState.COMPLETED or call.left:
        return None
    has_reacted = call.state is CallState.FAILED and was_stopped(info)
    seconds = call.duration if has_reacted else call.age
    return None if seconds is None else (call.gap or 0.0) + seconds


def stopped_first(facts: Facts, stopped: set[int]) -> frozenset[int]:
    """Return the ranks that were stopped before their peers ended or failed, and so not because of that."""
    evidence = facts.evidence
    known = stopped & facts.lasts.keys()
    found: set[int] = set()
    for instance in facts.instances.values() if stopped else ():
        first, until = _wait_times(instance, evidence.window)
        for r in known.intersection(instance.members) if until and not instance.p2p else ():
            idle = evidence.ranks[r].idle
            if idle is None or not _is_next(instance, facts.lasts[r].call):
                continue
            if idle < first + evidence.window and idle + evidence.window <= until:
                found.add(r)
        broken = _broken_by(facts, instance)
        if broken in stopped:
            found.add(broken)
    return frozenset(found)


def _is_next(instance: Instance, last: Call) -> bool:
    """True if ``last`` is the collective before this one, and its rank has completed it and did not join this one."""
    is_next = instance.key[:2] == (last.group, last.stream) and instance.key[2] == last.sequence_id + 1
    return is_next and last.state is CallState.COMPLETED and last.rank not in instance.calls


def _wait_times(instance: Instance, window: float) -> tuple[float, float]:
    """Return when the first call was made that lasted for the window, and until when the last unfinished call lasted.

    In seconds by each rank's own clock, from the end of its previous call; infinity and 0 if there are no such calls.
    """
    first, until = math.inf, 0.0
    for call in (instance.call(r) for r in instance.calls):
        seconds = call.lasted
        if call.state is not CallState.COMPLETED and not call.caught and seconds is not None:
            gap = call.gap or 0.0
            until = max(until, gap + seconds)
            first = min(first, gap) if seconds >= window else first
    return first, until


def stopped_late(facts: Facts, stopped: set[int]) -> set[int]:
    """Return the stopped ranks for which others had waited for the window, and the stopped ranks among these others.

    When somebody stops such a job, one rank may take long to end.
    """
    evidence = facts.evidence
    found: set[int] = set()
    for instance in facts.instances.values() if stopped else ():
        first, _ = _wait_times(instance, evidence.window)
        if first == math.inf:
            continue
        absent = {r for r in instance.members if facts.has_joined(instance, r) is False}
        found.update(r for r in stopped & absent if (evidence.ranks[r].idle or 0.0) >= first + evidence.window)
        is_behind = any(instance.call(r).queued for r in instance.calls if r not in stopped)  # on its device
        if absent or is_behind:
            waiting = [r for r in stopped.intersection(instance.calls) if is_waiting(instance.call(r), evidence.window)]
            found.update(r for r in waiting if instance.call(r).age is not None)
    return found


def _broken_by(facts: Facts, instance: Instance) -> int | None:
    """Return the only member that has ended and did not join, if the call failed on others at once; None: unknown.

    A call fails like this if the end of a rank closes its connections. At least one of the others ended by that
    failure. The rest may continue, or may have been stopped later than that member, by each rank's own clock since the
    previous call. If a call had lasted for the window, it may have waited for a rank that somebody stopped for just
    that reason.
    """
    evidence = facts.evidence
    if not any(_breaks_at_once(instance.call(r), evidence.window) for r in instance.calls):
        return None
    absent: list[int] = []
    raised: list[str] = []
    stopped_at: list[float | None] = []
    for r in instance.members:
        info = evidence.ranks.get(r)
        joined = facts.has_joined(instance, r)
        if info is None or joined is None:
            return None
        if not joined and info.has_left(instance.group.id):
            return None  # its connections were closed when it destroyed the group, not when a rank ended
        if info.ending is Ending.RUNNING or (joined and info.ending is Ending.UNKNOWN):
            continue
        call = instance.call(r) if r in instance.calls else None
        if not joined:
            absent.append(r)
        elif call is not None and _breaks_at_once(call, evidence.window):
            raised.extend([] if was_stopped(info) else [info.exception])
        elif call is not None and was_stopped(info) and call.state is CallState.IN_FLIGHT:
            stopped_at.append(None if call.age is None or call.gap is None else call.gap + call.age)
        else:
            return None
    if len(absent) != 1 or not raised or not all(map(is_communication, raised)):
        return None
    idle = evidence.ranks[absent[0]].idle
    is_first = all(idle is not None and seconds is not None and idle < seconds for seconds in stopped_at)
    return absent[0] if is_first else None


def _breaks_at_once(call: Call, window: float) -> bool:
    return failed_at_once(call, window) and not call.caught
