"""Failed calls whose ranks caught the failure: they wait there no more, and it is over once they complete another."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

from otel_fr.communication_errors import FROM, is_communication
from otel_fr.match.facts.instances import instance_key, newest_calls
from otel_fr.match.facts.stops import was_stopped
from otel_fr.match.model import Call, CallState, Ending, Evidence, Rank


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


def mark_caught(evidence: Evidence) -> Evidence:
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
