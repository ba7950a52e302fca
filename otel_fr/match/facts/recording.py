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

Failed calls whose ranks caught the failure: they wait there no more, and it is over once they complete another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_fr.communication_errors import FROM, is_communication
from otel_fr.match.facts.calls import is_posted, is_too_long, newest_calls
from otel_fr.match.facts.instances import instance_key
from otel_fr.match.facts.ranks import is_starved, was_stopped
from otel_fr.match.model import Call, CallState, Ending, Evidence, Rank

DEFAULT_GROUP = "default_pg"
"""c10d's description of the default group. Who destroys that destroys all groups."""
_ABORT_SECONDS = 2.0
"""From when a watchdog lets calls fail until the end of the process is known."""


def without_misleading(evidence: Evidence) -> Evidence:
    """The evidence as it is judged."""
    recorded = _not_blocked_by_host(_without_run_on(_without_gaps(_set_aside(evidence))))
    return _not_failed_by_abort(_mark_caught(_mark_timed_out(recorded)))


def _without_gaps(evidence: Evidence) -> Evidence:
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


def _set_aside(evidence: Evidence) -> Evidence:
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


def _without_run_on(evidence: Evidence) -> Evidence:
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


def _not_failed_by_abort(evidence: Evidence) -> Evidence:
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


def _mark_timed_out(evidence: Evidence) -> Evidence:
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


class _Newest(NamedTuple):
    """A rank's newest calls. None: not known, or there is none.

    Attributes:
        completed, blocked: the ages of the newest that has completed, and of the newest that has not.
        failed: the newest that failed.
    """

    completed: float | None
    blocked: float | None
    failed: Call | None

    def is_after(self, call: Call) -> bool:
        """One of them was enqueued after this call had failed."""
        return any(went_on_for(call, age) is not None for age in (self.completed, self.blocked))

    def failed_after(self, call: Call) -> Call | None:
        """The newest that failed, if it was enqueued after this call had failed."""
        failed = self.failed
        return failed if failed is not None and went_on_for(call, failed.age) is not None else None


def _mark_caught(evidence: Evidence) -> Evidence:
    """The evidence with `Call.left` and `Call.caught` set on the failed calls that their ranks caught.

    A rank caught a failed call if it enqueued another one after that had ended, which has completed. If the rank has
    ended by an exception, that may still be the call's, raised again once the rank had saved its state: it is not if
    the rank went on for the window at least, and either a later call of it failed or did not end, or the exception
    names neither the call's place nor communication; or if a later call failed at the exception's place.

    A rank has left a failed call, too, if it enqueued another one that has not completed (one that failed, if the rank
    has ended by an exception), if it ended well, or if it runs and nothing of it has moved for the window. And if it
    was killed, exited or ended by another exception, while others go on after such failures: so does the program.
    """
    failed = [call for call in evidence.calls if call.state is CallState.FAILED]
    if not failed:
        return evidence
    newest = _newest(evidence, {call.rank for call in failed})
    caught = {id(call) for call in failed if _is_caught(evidence, call, newest[call.rank])}
    gone_on = {id(call): instance_key(call) for call in failed if _has_gone_on(evidence, call, newest[call.rank])}
    # A program that waits for messages may catch their time-outs all the time.
    others = {id(call) for call in failed if id(call) in gone_on and call.stream != "p2p"}
    known, are_recovering = set(gone_on.values()), not caught.issuperset(others)
    left = caught.union(gone_on)
    left.update(id(call) for call in failed if _stands_elsewhere(evidence, call))
    for call in failed if gone_on else ():
        is_usual = are_recovering or instance_key(call) in known or (others and newest[call.rank].is_after(call))
        if is_usual and _ended_elsewhere(evidence, call):
            left.add(id(call))
    calls = [
        dataclasses.replace(call, left=True, caught=id(call) in caught) if id(call) in left else call
        for call in evidence.calls
    ]
    return dataclasses.replace(evidence, calls=calls)


def went_on_for(failed: Call, age: float | None) -> float | None:
    """Seconds from the end of a failed call until its rank enqueued another one, ``age`` seconds ago.

    None: not known, or it enqueued that one before the failed call ended.
    """
    if failed.age is None or failed.duration is None or age is None:
        return None
    seconds = failed.age - failed.duration - age
    return seconds if seconds > 0 else None


def _newest(evidence: Evidence, ranks: Iterable[int]) -> dict[int, _Newest]:
    ages: dict[int, dict[bool, float]] = {rank: {} for rank in ranks}
    for rank, own in ages.items():
        info = evidence.ranks.get(rank)
        if info is not None and info.completed_age is not None:
            own[True] = info.completed_age
    known = [call for call in evidence.calls if call.rank in ages and call.age is not None]
    for call in known:
        own, is_completed = ages[call.rank], call.state is CallState.COMPLETED
        own[is_completed] = min(call.age or 0.0, own.get(is_completed, math.inf))
    failed = newest_calls(call for call in known if call.state is CallState.FAILED)
    return {rank: _Newest(own.get(True), own.get(False), failed.get(rank)) for rank, own in ages.items()}


def _ended_by_itself(info: Rank) -> bool:
    """By an exception, or how is not known: nobody has stopped it."""
    return info.ending in (Ending.RAISED, Ending.GONE) and not was_stopped(info)


def _is_caught(evidence: Evidence, call: Call, newest: _Newest) -> bool:
    seconds = went_on_for(call, newest.completed)
    info = evidence.ranks.get(call.rank)
    if seconds is None or info is None or newest.completed is None:
        return False
    later = newest.failed_after(call)
    ended_later = later is not None and later.site == info.exception_site != call.site
    if ended_later or not _ended_by_itself(info):
        return True
    if seconds < evidence.window:
        return False
    return (newest.blocked is not None and newest.blocked < newest.completed) or not _may_come_from(
        info, call, info.exception
    )


def _has_gone_on(evidence: Evidence, call: Call, newest: _Newest) -> bool:
    """Its rank has enqueued another one since."""
    info = evidence.ranks.get(call.rank)
    if info is None:
        return False
    return newest.failed_after(call) is not None if _ended_by_itself(info) else newest.is_after(call)


def _stands_elsewhere(evidence: Evidence, call: Call) -> bool:
    """Its rank, which does not end or has ended well, waits there no more."""
    info = evidence.ranks.get(call.rank)
    if info is None or not (info.ending in (Ending.RUNNING, Ending.CLEAN) or was_stopped(info)):
        return False
    since = went_on_for(call, 0.0) or 0.0
    return info.ending is Ending.CLEAN or (since >= evidence.window and not info.exiting and not info.exception)


def _ended_elsewhere(evidence: Evidence, call: Call) -> bool:
    """Its rank has ended, and not by that failure, if the program catches such."""
    info = evidence.ranks.get(call.rank)
    if info is None or was_stopped(info):
        return False
    said = info.exception.partition(FROM)[0]  # what it was raised from may be the failure that was being handled
    is_other = not said or not _may_come_from(info, call, said)
    return info.ending is Ending.KILLED or (info.ending in (Ending.RAISED, Ending.GONE) and is_other)


def _may_come_from(info: Rank, call: Call, exception: str) -> bool:
    """True if the rank may have ended by the call's failure, not by what it did after it had caught that."""
    return not exception or info.exception_site == call.site or is_communication(exception)


def _not_blocked_by_host(evidence: Evidence) -> Evidence:
    """The evidence without `Rank.python_blocked` of starved ranks: they had no processor to answer."""
    ranks = {
        rank: dataclasses.replace(info, python_blocked=False)
        for rank, info in evidence.ranks.items()
        if info.python_blocked and is_starved(info, evidence.window)
    }
    return dataclasses.replace(evidence, ranks={**evidence.ranks, **ranks}) if ranks else evidence
