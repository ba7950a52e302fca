"""Calls that destroy process groups: no rank waits for another one in them, so they form no collective.

Ranks may destroy a group at different times, or not at all, and their launcher may end them before. So no verdict rests
on such a call that is missing, and one that has ended is not what its rank did last. One in flight shows where its rank
is, and that it joins no further call of that group.
"""

from __future__ import annotations

import dataclasses

from otel_fr.match.model import Call, CallState, Evidence

DEFAULT_GROUP = "default_pg"
"""c10d's description of the default group. Who destroys that destroys all groups."""


def set_aside(evidence: Evidence) -> Evidence:
    """The evidence without these calls; `Rank.destroying` and `Rank.leaving` have those in flight."""
    newest: dict[int, Call] = {}
    others: list[Call] = []
    for call in evidence.calls:
        if not call.signature.destroys:
            others.append(call)
        elif call.state is CallState.IN_FLIGHT and (call.rank not in newest or call.record > newest[call.rank].record):
            newest[call.rank] = call
    if len(others) == len(evidence.calls):
        return evidence
    ranks = dict(evidence.ranks)
    for rank, call in newest.items():
        if rank in ranks:
            ranks[rank] = dataclasses.replace(ranks[rank], destroying=call, leaving=_destroyed_by(evidence, call))
    return dataclasses.replace(evidence, calls=others, ranks=ranks)


def _destroyed_by(evidence: Evidence, call: Call) -> frozenset[str]:
    """Ids of the groups."""
    group = evidence.groups.get(call.group)
    if group is not None and group.description == DEFAULT_GROUP:
        return frozenset(evidence.groups)
    return frozenset({call.group})
