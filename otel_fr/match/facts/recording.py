"""What was recorded and misleads: it is left out, or marked, before anything else is judged.

Ranks whose recording had errors: a hole in their numbers looks like a call left out.

Calls that destroy process groups: no rank waits for another one in them, so they form no collective. Ranks may destroy
a group at different times, or not at all, and their launcher may end them before. So no verdict rests on such a call
that is missing, and one that has ended is not what its rank did last. One in flight shows where its rank is, and that
it joins no further call of that group.

Calls that a rank makes while its watchdog ends it, after the call that timed out: the rank still waits in that one.
ProcessGroupNCCL's watchdog aborts the communicators and then the process. In between, waits for the device return as if
the call had completed, and the program makes its next calls, which no peer can meet.

Calls that ended after a watchdog gave them up, or that failed only as a watchdog ended their rank: it still waited in
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from otel_fr.match.facts.caught import went_on_for
from otel_fr.match.facts.instances import is_posted, newest_calls
from otel_fr.match.facts.joined import is_too_long
from otel_fr.match.model import Call, CallState, Evidence, Rank

DEFAULT_GROUP = "default_pg"
"""c10d's description of the default group. Who destroys that destroys all groups."""
_ABORT_SECONDS = 2.0
"""From when a watchdog lets calls fail until the end of the process is known."""


def without_gaps(evidence: Evidence) -> Evidence:
    """The evidence without the calls and counts of ranks that have gaps. How they ended, and their stacks, stay."""
    left_out = {rank for rank, info in evidence.ranks.items() if info.has_gaps}
    if not left_out:
        return evidence
    ranks = {
        rank: dataclasses.replace(info, progress={}, idle=None, completed_age=None, complete=False, patterns=())
        if rank in left_out
        else info
        for rank, info in evidence.ranks.items()
    }
    return dataclasses.replace(
        evidence,
        ranks=ranks,
        calls=[call for call in evidence.calls if call.rank not in left_out],
    )


def set_aside(evidence: Evidence) -> Evidence:
    """The evidence without these calls; `Rank.destroying` and `Rank.leaving` have those in flight."""
    others = [call for call in evidence.calls if not call.signature.destroys]
    if len(others) == len(evidence.calls):
        return evidence
    ranks = dict(evidence.ranks)
    open_ = (call for call in evidence.calls if call.signature.destroys and call.state is CallState.IN_FLIGHT)
    for rank, call in newest_calls(open_).items():
        if rank in ranks:
            ranks[rank] = dataclasses.replace(ranks[rank], destroying=call, leaving=_destroyed_by(evidence, call))
    return dataclasses.replace(evidence, calls=others, ranks=ranks)


def _destroyed_by(evidence: Evidence, call: Call) -> frozenset[str]:
    """Ids of the groups."""
    group = evidence.groups.get(call.group)
    if group is not None and group.description == DEFAULT_GROUP:
        return frozenset(evidence.groups)
    return frozenset({call.group})


def without_run_on(evidence: Evidence) -> Evidence:
    """The evidence without the unfinished calls that these ranks made after the timeout of an unfinished one."""
    until: dict[int, float] = {}
    ended = {r for r, info in evidence.ranks.items() if info.was_aborted}
    for call in evidence.calls if ended else ():
        if call.rank in ended and _is_open(call) and call.age is not None and call.timeout:
            until[call.rank] = max(call.age - call.timeout, until.get(call.rank, 0.0))
    left_out = [call for call in evidence.calls if _is_open(call) and _is_after(call, until)]
    if not left_out:
        return evidence
    ids = set(map(id, left_out))
    return dataclasses.replace(
        evidence,
        calls=[call for call in evidence.calls if id(call) not in ids],
        ranks=_before(evidence.ranks, left_out),
    )


def _is_open(call: Call) -> bool:
    return call.state is not CallState.COMPLETED and not call.caught


def _is_after(call: Call, until: Mapping[int, float]) -> bool:
    """It was made later than so many seconds before its rank's end. (No thread waits for a message of age 0.)"""
    if call.age is None or is_posted(call):
        return False
    return call.age < until.get(call.rank, 0.0)


def _before(ranks: Mapping[int, Rank], left_out: list[Call]) -> dict[int, Rank]:
    """The ranks, with their progress as it was before these calls."""
    found = dict(ranks)
    for call in left_out:
        info = found[call.rank]
        own = info.progress.get(call.group)
        if own is None or call.stream != "collective":
            continue
        enqueued = min(call.sequence_id - 1, own.enqueued if own.enqueued is not None else call.sequence_id)
        progress = {**info.progress, call.group: dataclasses.replace(own, enqueued=enqueued)}
        found[call.rank] = dataclasses.replace(info, progress=progress)
    return found


def not_failed_by_abort(evidence: Evidence) -> Evidence:
    """The evidence with the calls in flight that failed as a watchdog ended their rank, and without that as a move.

    ProcessGroupNCCL's watchdog leaves calls in flight. nccl2's lets them fail, and then ends the process.
    """
    moved = {r for r, info in evidence.ranks.items() if _moved_as_aborted(info)}
    newest = newest_calls(call for call in evidence.calls if call.rank in moved) if moved else {}
    last = {r: call for r, call in newest.items() if _has_failed(call)}
    if not last:
        return evidence
    calls = [
        dataclasses.replace(call, state=CallState.IN_FLIGHT, age=call.duration, duration=None, error=None)
        if call.rank in last and _has_failed(call) and went_on_for(call, last[call.rank].age) is None
        else call
        for call in evidence.calls
    ]
    stood = {rank: (evidence.ranks[rank].idle or 0.0) + (call.duration or 0.0) for rank, call in last.items()}
    ranks = {rank: dataclasses.replace(evidence.ranks[rank], idle=idle) for rank, idle in stood.items()}
    return dataclasses.replace(evidence, calls=calls, ranks={**evidence.ranks, **ranks})


def _moved_as_aborted(info: Rank) -> bool:
    """It ended by SIGABRT, and a call of it was enqueued or ended just before."""
    return info.was_aborted and info.idle is not None and info.idle < _ABORT_SECONDS


def _has_failed(call: Call) -> bool:
    return call.state is CallState.FAILED and not call.caught and call.duration is not None


def mark_timed_out(evidence: Evidence) -> Evidence:
    """The evidence with the first call of each rank as timed out that ended after a watchdog had given it up.

    NCCL's watchdog ends its process some seconds after the timeout. A rank that comes late by as much completes the
    call meanwhile, and it looks as if nothing had blocked the rank that is ended. Later calls waited behind the first.
    """
    ended = {r for r, info in evidence.ranks.items() if info.was_aborted}
    if not ended:
        return evidence
    first: dict[int, Call] = {}
    for call in evidence.calls:
        if call.rank in ended and call.state is CallState.COMPLETED and is_too_long(call):
            known = first.get(call.rank)
            if known is None or call.record < known.record:
                first[call.rank] = call
    calls = [
        dataclasses.replace(call, state=CallState.FAILED, error="timeout", duration=call.timeout)
        if call is first.get(call.rank)
        else call
        for call in evidence.calls
    ]
    return dataclasses.replace(evidence, calls=calls)
