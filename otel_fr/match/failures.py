"""Calls whose recorded end misleads: they ended after a watchdog gave them up, or failed and their rank caught it."""

from __future__ import annotations

import dataclasses
from signal import SIGABRT

from otel_fr.communication_errors import is_communication
from otel_fr.match.endings import was_stopped
from otel_fr.match.joined import is_too_long
from otel_fr.match.model import Call, CallState, Ending, Evidence, Rank


def mark_timed_out(evidence: Evidence) -> Evidence:
    """The evidence with the first call of each rank as timed out that ended after a watchdog had given it up.

    NCCL's watchdog ends its process some seconds after the timeout. A rank that comes late by as much completes the
    call meanwhile, and it looks as if nothing had blocked the rank that is ended. Later calls waited behind the first.
    """
    ended = {r for r, info in evidence.ranks.items() if info.ending is Ending.KILLED and info.signal == SIGABRT}
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


def mark_caught(evidence: Evidence) -> Evidence:
    """The evidence with `Call.caught` set on the failed calls that their ranks caught.

    A rank caught a failed call if it enqueued another one after that had ended, which has completed. If the rank has
    ended by an exception, that may still be the call's, raised again once the rank had saved its state: it is not if
    the rank went on for the window at least, and either a later call of it failed or did not end, or the exception
    names neither the call's place nor communication.
    """
    failed = {call.rank for call in evidence.calls if call.state is CallState.FAILED}
    if not failed:
        return evidence
    newest: dict[int, float] = {}
    blocked: dict[int, float] = {}
    for rank in failed:
        info = evidence.ranks.get(rank)
        if info is not None and info.completed_age is not None:
            newest[rank] = info.completed_age
    for call in evidence.calls:
        if call.rank in failed and call.age is not None:
            found = newest if call.state is CallState.COMPLETED else blocked
            found[call.rank] = min(call.age, found.get(call.rank, call.age))
    calls = [
        dataclasses.replace(call, caught=True)
        if call.state is CallState.FAILED
        and call.rank in newest
        and _is_caught(evidence, call, newest[call.rank], blocked.get(call.rank))
        else call
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


def _is_caught(evidence: Evidence, call: Call, newest: float, blocked: float | None) -> bool:
    """``newest``, ``blocked``: ages of the rank's newest call that completed, and of its newest that did not."""
    seconds = went_on_for(call, newest)
    info = evidence.ranks.get(call.rank)
    if seconds is None or info is None:
        return False
    if was_stopped(info) or info.ending not in (Ending.RAISED, Ending.GONE):
        return True
    if seconds < evidence.window:
        return False
    return (blocked is not None and blocked < newest) or not _may_come_from(info, call)


def _may_come_from(info: Rank, call: Call) -> bool:
    """True if the rank may have ended by the call's failure."""
    return not info.exception or info.exception_site == call.site or is_communication(info.exception)
