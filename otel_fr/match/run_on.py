"""Calls of a rank that its watchdog ends, made after the call that timed out: the rank still waits in that one.

Source of the rule: ProcessGroupNCCL's watchdog aborts the communicators and then the process. In between, waits for the
device return as if the call had completed, and the program makes its next calls, which no peer can meet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from signal import SIGABRT

from otel_fr.match.model import Call, CallState, Ending, Evidence, Rank


def without_run_on(evidence: Evidence) -> Evidence:
    """The evidence without the unfinished calls that these ranks made after the timeout of an unfinished one."""
    until: dict[int, float] = {}
    ended = {r for r, info in evidence.ranks.items() if info.ending is Ending.KILLED and info.signal == SIGABRT}
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
    if call.age is None or (call.stream == "p2p" and call.age == 0.0):
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
