"""Completes calls whose backend does not show when they end: a collective that every member has joined has completed.

The collector does the same (`otel_fr_collector.jobs.incomplete`). `run_columns` decides collectives with equal calls.
This module decides the others, for example gathers, whose lists differ from rank to rank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from otel_fr.match.facts.instances import InstanceKey, instance_key
from otel_fr.match.facts.legal import compare
from otel_fr.match.model import Call, CallState, Group

_MAY_HAVE_ENDED = (CallState.UNKNOWN, CallState.COMPLETED)


def complete_joined(calls: Sequence[Call], groups: Mapping[str, Group]) -> list[Call]:
    """Return the calls. Those of unknown state are completed if all members have joined with matching arguments.

    All calls are compared with the first one only. If two others do not match, the match engine finds that from calls
    of any state.
    """
    unseen = {key for call in calls if call.state is CallState.UNKNOWN and (key := instance_key(call)) is not None}
    if not unseen:
        return list(calls)
    found: dict[InstanceKey, list[Call]] = {}
    for call in calls:
        key = instance_key(call)
        if key in unseen and key is not None:
            found.setdefault(key, []).append(call)
    over = {key for key, own in found.items() if _is_over(key, own, groups[own[0].group])}
    return [
        dataclasses.replace(call, state=CallState.COMPLETED)
        if call.state is CallState.UNKNOWN and instance_key(call) in over
        else call
        for call in calls
    ]


def _is_over(key: InstanceKey, calls: list[Call], group: Group) -> bool:
    members = group.ranks if len(key) == 3 else key[2:4]
    if any(call.state not in _MAY_HAVE_ENDED for call in calls) or {call.rank for call in calls} != {*members}:
        return False
    return all(compare(group, calls[0], call) is None for call in calls[1:] if call.rank != calls[0].rank)
