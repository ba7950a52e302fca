"""What else may have begun a fault in which others wait for a rank without evidence: then that rank is not named.

Source of the rule: if a rank without evidence was the only one at fault, all other ranks did what their
program says, and each of them waits: its first call in flight lacks a rank, or waits behind others. Evidence that does
not fit shows that the fault may have begun elsewhere, so that the rank without evidence may wait as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from otel_fr.match.case import Case
from otel_fr.match.facts.instances import has_joined, is_waiting
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import Call, CallState, Ending, Evidence


def may_have_begun_elsewhere(case: Case) -> bool:
    """True if the evidence does not fit a fault that began at the ranks without evidence alone."""
    unheard = case.unheard
    if any(calls.late for calls in case.open_calls.values()):
        return True  # a device that may be blocked
    if case.steps.shared or case.steps.culprits.difference(unheard):
        return True  # a rank that left out a call
    heads = _heads(case)
    return (
        any(_is_unexplained(node, heads) or _may_be_missing(case, node, heads, unheard) for node in case.nodes.values())
        or _has_served_head(case, heads)
        or any(_is_vague(call, unheard) for call in heads.values())
    )


def near(evidence: Evidence, culprits: Iterable[int]) -> set[int]:
    """The ranks that share a group with a culprit: they may wait for it."""
    found, wanted = set[int](), set(culprits)
    for group in evidence.groups.values():
        if not wanted.isdisjoint(group.ranks):
            found.update(group.ranks)
    return found


def may_be_stuck(case: Case, node: Node) -> bool:
    """True if a rank that waits here may be blocked by its own device.

    Others completed this call of it, an earlier one, or one that needs the device of every rank.
    """
    return any(
        late.needs_every_rank or case.instances[late.key].call(rank).record <= node.instance.call(rank).record
        for rank in node.waiting
        if rank in case.open_calls
        for late in case.open_calls[rank].late
    )


def _heads(case: Case) -> dict[int, Call]:
    """The first call in flight of each rank that has one: only this one does not wait for its own rank's calls."""
    heads: dict[int, Call] = {}
    for call in case.evidence.calls:
        if call.state is not CallState.COMPLETED and is_waiting(call, case.evidence.window):
            known = heads.setdefault(call.rank, call)
            if call.record < known.record:
                heads[call.rank] = call
    return heads


def _is_unexplained(node: Node, heads: Mapping[int, Call]) -> bool:
    """True if all members joined it, and nothing before it blocks any of them.

    The calls of a batch end together, so one of them may wait for what another one lacks.
    """
    instance = node.instance
    if node.mismatch is not None or not set(instance.calls).issuperset(instance.members):
        return False
    return all(instance.call(rank) is heads.get(rank) and instance.call(rank).batch is None for rank in node.waiting)


def _has_served_head(case: Case, heads: Mapping[int, Call]) -> bool:
    """True if a rank's first call in flight is a message whose other end completed."""
    for instance in case.instances.values():
        if instance.p2p is not None and len(instance.calls) > 1:
            calls = [calls[-1] for calls in instance.calls.values()]
            if any(call.state is CallState.COMPLETED for call in calls) and any(
                call.state is CallState.IN_FLIGHT and heads.get(call.rank) is call for call in calls
            ):
                return True
    return False


def _is_vague(head: Call, unheard: Collection[int]) -> bool:
    """True if it is a message whose other end the peer's evidence does not show: it may have completed."""
    return head.signature.any_source and head.signature.peer is not None and head.signature.peer not in unheard


def _may_be_missing(case: Case, node: Node, heads: Mapping[int, Call], unheard: Collection[int]) -> bool:
    """True if another rank, which waits in no call, is not known to have joined it."""
    if node.behind is not None or case.completions.prove_joined(node.instance):
        return False
    for rank in node.instance.members:
        info = case.evidence.ranks.get(rank)
        if rank in unheard or rank in heads or info is None:
            continue
        if info.ending is not Ending.CLEAN and has_joined(node.instance, rank, info) is None:
            return True
    return False
