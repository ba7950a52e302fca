"""Leaves out or marks misleading records, before anything else is judged.

Ranks whose recording had errors: a hole in their numbers looks like a call that was left out.

Calls that destroy process groups: no rank waits for another one in them, so they form no collective. Ranks may destroy
a group at different times, or not at all, and their launcher may end them before. So no verdict rests on a missing call
of this kind, and a completed one does not count as a rank's last activity. A call in flight shows where its rank is,
and that the rank joins no further call of that group.

Calls that a rank makes after a call timed out, while its watchdog ends it: the rank still waits in the earlier call.
ProcessGroupNCCL's watchdog aborts the communicators and then the process. In between, waits for the device return as if
the call had completed, and the program makes its next calls, which no peer can meet.

Calls that ended after a watchdog gave them up, or that failed only while a watchdog ended their rank: the rank still
waited in them.

Failed calls whose ranks caught the failure: the ranks no longer wait in them. The failure is over once the ranks
complete another call.
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
"""c10d's description of the default group. Destroying it destroys all groups."""
_ABORT_SECONDS = 2.0
"""Seconds from when a watchdog lets calls fail until the end of the process is known."""


def without_misleading(evidence: Evidence) -> Evidence:
    """Return the evidence to judge, without misleading records."""
    recorded = _not_blocked_by_host(_without_run_on(_without_gaps(_set_aside(evidence))))
    return _not_failed_by_abort(_mark_caught(_mark_timed_out(recorded)))


def _without_gaps(evidence: Evidence) -> Evidence:
    """Return the evidence without the calls and counts of ranks that have gaps. Their endings and stacks stay."""
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
    """Return the evidence without calls that destroy groups. Calls in flight are kept in `Rank.destroying`."""
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
    """Return the ids of the groups that the call destroys."""
    group = evidence.groups.get(call.group)
    if group is not None and group.description == DEFAULT_GROUP:
        return frozenset(evidence.groups)
    return frozenset({call.group})


def _without_run_on(evidence: Evidence) -> Evidence:
    """Return the evidence without the unfinished calls that aborted ranks made after an earlier call had timed out."""
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
    """True if the call was made less than ``until`` seconds before its rank's end, and is not just posted."""
    if call.age is None or is_posted(call):
        return False
    return call.age < until.get(call.rank, 0.0)


def _before(ranks: Mapping[int, Rank], left_out: list[Call]) -> dict[int, Rank]:
    """Return the ranks, with their progress as it was before these calls."""
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
    """Return the evidence in which calls that failed while a watchdog ended their rank are in flight again.

    Their failure does not count as an activity of the rank either. ProcessGroupNCCL's watchdog leaves calls in flight.
    nccl2's watchdog lets them fail, and then ends the process.
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
    """True if SIGABRT ended the rank, and a call of the rank was enqueued or ended just before."""
    return info.was_aborted and info.idle is not None and info.idle < _ABORT_SECONDS


def _has_failed(call: Call) -> bool:
    return call.state is CallState.FAILED and not call.caught and call.duration is not None


def _mark_timed_out(evidence: Evidence) -> Evidence:
    """Return the evidence in which each aborted rank's first call that outlasted its timeout is marked as timed out.

    NCCL's watchdog ends its process some seconds after the timeout. If a peer comes late by as much, the call completes
    meanwhile, and nothing seems to have blocked the aborted rank. Its later calls waited behind the first.
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
    """A rank's newest calls. None: unknown, or there is none.

    Attributes:
        completed: age of the newest call that has completed.
        blocked: age of the newest call that has not.
        failed: the newest call that failed.
    """

    completed: float | None
    blocked: float | None
    failed: Call | None

    def is_after(self, call: Call) -> bool:
        """True if one of the newest calls was enqueued after this call had failed."""
        return any(went_on_for(call, age) is not None for age in (self.completed, self.blocked))

    def failed_after(self, call: Call) -> Call | None:
        """Return the newest failed call if it was enqueued after this call had failed, else None."""
        failed = self.failed
        return failed if failed is not None and went_on_for(call, failed.age) is not None else None


def _mark_caught(evidence: Evidence) -> Evidence:
    """Return the evidence with `Call.left` and `Call.caught` set on the failed calls that their ranks caught.

    A rank caught a failed call if it enqueued another call after the failure, and that call has completed. If the rank
    has ended by an exception, the exception may still be the call's, raised again once the rank had saved its state. It
    is not the call's if a later call failed at the exception's place. Nor if the rank continued for at least the
    window, and either a later call failed or did not end, or the exception names neither the call's place nor
    communication.

    A rank has also left a failed call

    * if it enqueued another call that has not completed (one that failed, if an exception ended the rank),
    * if it ended well, or has survived the failure for the window, or
    * if it was killed, exited or ended by another exception, while other ranks continue after such failures: the
      program catches them.
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
    """Return the seconds from the end of a failed call until its rank enqueued another call, ``age`` seconds ago.

    None: not known, or the rank enqueued the other call before the failed one ended.
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
    """True if the rank ended by an exception or in an unknown way, and nobody stopped it."""
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
    """True if the call's rank has enqueued another call since the failure."""
    info = evidence.ranks.get(call.rank)
    if info is None:
        return False
    return newest.failed_after(call) is not None if _ended_by_itself(info) else newest.is_after(call)


def _stands_elsewhere(evidence: Evidence, call: Call) -> bool:
    """True if the rank ended well, or has survived the call's failure for the window: it no longer waits there."""
    info = evidence.ranks.get(call.rank)
    if info is None or not (info.ending in (Ending.RUNNING, Ending.CLEAN) or was_stopped(info)):
        return False
    since = went_on_for(call, 0.0) or 0.0
    return info.ending is Ending.CLEAN or (since >= evidence.window and not info.exiting and not info.exception)


def _ended_elsewhere(evidence: Evidence, call: Call) -> bool:
    """True if the call's rank has ended, and not by this failure, given that the program catches such failures."""
    info = evidence.ranks.get(call.rank)
    if info is None or was_stopped(info):
        return False
    said = info.exception.partition(FROM)[0]  # the part after FROM may be the failure that was being handled
    is_other = not said or not _may_come_from(info, call, said)
    return info.ending is Ending.KILLED or (info.ending in (Ending.RAISED, Ending.GONE) and is_other)


def _may_come_from(info: Rank, call: Call, exception: str) -> bool:
    """True if the call's failure may have ended the rank, not something that it did after it had caught the failure."""
    return not exception or info.exception_site == call.site or is_communication(exception)


def _not_blocked_by_host(evidence: Evidence) -> Evidence:
    """Return the evidence without `Rank.python_blocked` for starved ranks: they had no processor to answer."""
    ranks = {
        rank: dataclasses.replace(info, python_blocked=False)
        for rank, info in evidence.ranks.items()
        if info.python_blocked and is_starved(info, evidence.window)
    }
    return dataclasses.replace(evidence, ranks={**evidence.ranks, **ranks}) if ranks else evidence
