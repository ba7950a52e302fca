"""The collectives in which the ranks of a run wait."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import reported_calls
from otel_fr_collector.web.rank_states import CHUNK

WAITING = 3.0
"""Seconds in one call from which a rank counts as waiting."""


class Wait(NamedTuple):
    """One call that ranks wait in, by rank for how many seconds. ``group``: its id."""

    operation: str
    number: int
    group: str
    ranks: dict[int, float]


async def waits_of(run: Run, now: float, least: float) -> list[Wait]:
    """The calls in which ranks are for ``least`` seconds, those of most ranks first; yields every `CHUNK` ranks.

    A rank counts once: in its oldest call.
    """
    found: dict[tuple[str, str, int], Wait] = {}
    latest, instance = now - least, None
    for count, state in enumerate(list(run.ranks.values()), 1):
        if count % CHUNK == 0:
            await asyncio.sleep(0)
        inflight = state.contents.inflight
        if not inflight or state.ended is not None:
            continue
        call: RankCall | None = inflight[0]
        if len(inflight) == 1 and call is not None:  # nearly always so
            if call.enqueued_at is None or call.enqueued_at > latest:
                continue
            key = call.group, call.stream, call.sequence_id
            if instance is None or instance.key != key:  # mostly as of the rank before
                group = run.groups.get(call.group)
                instance = None if group is None else group.incomplete.get(key)
            known = None if instance is None else instance.calls.get(state.rank)
            if known is not call and not (isinstance(known, RankCall) and known.says_as_much(call)):
                call = oldest_call(run, state)
        else:
            call = oldest_call(run, state)
        if call is None or call.enqueued_at is None or call.enqueued_at > latest:
            continue
        where = call.group, call.signature.operation, call.sequence_id
        wait = found.get(where)
        if wait is None:
            wait = found[where] = Wait(call.signature.operation, call.sequence_id, call.group, {})
        wait.ranks[state.rank] = now - call.enqueued_at
    return sorted(found.values(), key=lambda one: -len(one.ranks))


def oldest_call(run: Run, state: RankState) -> RankCall | None:
    """The call in which the rank has been for longest; None: it is in none."""
    found, since = None, math.inf
    for call in reported_calls(run, state):
        if call.enqueued_at is not None and call.enqueued_at < since:
            found, since = call, call.enqueued_at
    return found
