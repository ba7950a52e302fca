"""The calls in which the ranks of a run wait."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import reported_calls
from otel_fr_collector.web.rank_states import CHUNK

WAITING = 3.0
"""Seconds in one call after which a rank counts as waiting."""
UNTOLD = "collective"
"""Shown as the operation if the ranks have not named one, or have named different ones."""


class Call(NamedTuple):
    """A call that a rank is in. ``group``: the group's id. ``seconds``: how long the rank has been in the call."""

    operation: str
    number: int
    group: str
    seconds: float


class Wait(NamedTuple):
    """A call in which ranks wait. ``ranks``: seconds, by rank. ``group``: the group's id."""

    operation: str
    number: int
    group: str
    ranks: dict[int, float]


async def waits_of(run: Run, now: float, least: float) -> list[Wait]:
    """The calls in which ranks have been for ``least`` seconds, those with the most ranks first.

    Each rank counts once, in its oldest call. Yields to the event loop every `CHUNK` ranks.
    """
    found: dict[tuple[str, str, int], Wait] = {}
    listed = run.waiting
    for count, state in enumerate(list(run.ranks.values()), 1):
        if count % CHUNK == 0:
            await asyncio.sleep(0)
        report = state.report
        if report is None or (report.unlisted_s is None and state.rank not in listed):
            continue  # nearly all ranks of a healthy run
        call = call_of(run, state, now, least)
        if call is None:
            continue
        where = call.group, call.operation, call.number
        wait = found.get(where)
        if wait is None:
            wait = found[where] = Wait(call.operation, call.number, call.group, {})
        wait.ranks[state.rank] = call.seconds
    return sorted(found.values(), key=lambda one: -len(one.ranks))


def call_of(run: Run, state: RankState, now: float, least: float = 0.0) -> Call | None:
    """The call in which the rank has been longest. None: it is in no call, or not for ``least`` seconds."""
    report, latest = state.report, now - least
    if report is None or state.ended is not None:
        return None
    known = state.contents.inflight
    if report.unlisted_s is not None and not known:
        seconds = report.unlisted_s + max(0.0, now - state.arrived)
        return _by_counts(run, state, seconds) if seconds >= least else None
    if len(known) == 1 and (known[0].enqueued_at is None or known[0].enqueued_at > latest):
        return None
    found = None
    for call in reported_calls(run, state):
        if call.enqueued_at is not None and call.enqueued_at <= latest:
            found, latest = call, call.enqueued_at
    if found is None:
        return None
    return Call(found.signature.operation, found.sequence_id, found.group, now - latest)


def _by_counts(run: Run, state: RankState, seconds: float) -> Call | None:
    """The call of a rank that reports only that it waits (`otel_fr.monitor.witness`), from the counts of its calls."""
    for gid, own in state.progress.items():
        group = run.groups.get(gid)
        if group is not None and own[0] > own[1]:
            instance = group.incomplete.get((gid, "collective", own[0]))
            same = None if instance is None else instance.signature
            return Call(UNTOLD if same is None else same.operation, own[0], gid, seconds)
    return None
