"""Where ranks that others wait for are or were: blocked on the host, in no call, or waiting unseen by their backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from otel_fr.match.case import Case
from otel_fr.match.facts.calls import failed_at_once, is_incomplete
from otel_fr.match.facts.endings import stayed_away
from otel_fr.match.facts.instances import Instance, instance_key
from otel_fr.match.facts.mismatch import judge
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import CallState, Ending
from otel_fr.match.rules.claims import Claims


def are_blocked(case: Case, node: Node, culprits: Iterable[int]) -> bool:
    """True if the others wait for these ranks to continue in their code.

    If the call failed at once, because a connection was closed, nobody is known to be blocked.
    """
    calls = [node.instance.call(rank) for rank in node.waiting]
    if all(failed_at_once(call, case.evidence.window) for call in calls):
        return False
    return all(_is_idle(case, rank, node.instance) for rank in culprits)


def is_in_no_call(case: Case, rank: int, instance: Instance) -> bool:
    """True if the rank has no call in flight, and is known to live, or to have lived until it was ended for the fault.

    A rank that has not reached its half of a message has not left it out. (PyTorch's files do not show whether a rank
    is alive.)
    """
    info, last = case.evidence.ranks.get(rank), case.lasts.get(rank)
    if info is None or not info.complete or (last is not None and last.in_call):
        return False
    if stayed_away(instance, info):
        return True
    if info.is_leaving:
        return False
    return info.ending is Ending.KILLED if info.ending is not Ending.RUNNING else info.idle is not None


def _is_idle(case: Case, rank: int, instance: Instance) -> bool:
    """True if all calls of the rank in the instance's group completed.

    It is alive, or was until its launcher ended it for the fault. (A rank that ended by a fault of its own is dead.)
    """
    info = case.evidence.ranks.get(rank)
    progress = info.progress.get(instance.group.id) if info is not None else None
    if info is None or info.has_left(instance.group.id):
        return False
    if info.ending not in (Ending.RUNNING, Ending.KILLED, Ending.RAISED) and not stayed_away(instance, info):
        return False
    last = case.lasts.get(rank)
    if last is not None and last.in_call and info.ending is Ending.RUNNING:
        return False
    if instance.p2p is not None and is_in_no_call(case, rank, instance):
        return True
    if progress is None or progress.enqueued is None:
        return False
    return progress.enqueued == progress.completed


def may_wait(case: Case, rank: int) -> bool:
    """True if the rank is alive, and none of its calls is known to have ended.

    It may wait in a call that all members joined, so it is no culprit if another cause is known.
    """
    info, last = case.evidence.ranks.get(rank), case.lasts.get(rank)
    return (
        info is not None
        and info.ending is Ending.RUNNING
        and (last is None or last.call.state is not CallState.FAILED)
        and not info.python_blocked
        and any(own.enqueued for own in info.progress.values())
        and not any(own.completed for own in info.progress.values())
    )


def died_in_mismatch(case: Case, claims: Claims, ranks: Sequence[int]) -> str | None:
    """Return the key of the mismatch in which these ranks died: backends abort ranks because of a mismatch.

    A later call of the group counts, too, if its calls do not match either.
    """
    wrong = {bad.instance.key for bad in case.mismatches if not bad.is_over}
    for own in case.by_rank.get(ranks[0], ()):
        key = instance_key(own)
        instance = case.instances.get(key) if key is not None and key in claims.cause_of else None
        if instance is None or any(rank not in instance.calls for rank in ranks):
            continue
        if any(not is_incomplete(instance.call(rank)) for rank in ranks):
            continue
        node = case.nodes.get(instance.key)
        is_behind = node is not None and node.mismatch is not None and judge(instance) is not None
        if is_behind or instance.key in wrong:
            return claims.cause_of[instance.key]
    return None


def is_in_barrier(case: Case, rank: int) -> bool:
    """True if the rank waits in a barrier that is known to be in flight: for its peers, not for its device."""
    last = case.lasts.get(rank)
    return last is not None and last.call.state is CallState.IN_FLIGHT and last.call.signature.operation == "barrier"


def callers_of_extra(case: Case, node: Node, missing: Sequence[int], *, unseen: bool) -> list[int]:
    """Return the ranks that wait in this node in a call too many; empty: unknown.

    Args:
        missing: the ranks for which they wait. These ended well after fewer calls, destroyed the group, continued to a
            later call, or (``unseen``) seem to be in no call because their backend does not show when calls end.
    """
    if not unseen and not all(_has_passed(case, node, rank) for rank in missing):
        return []
    culprits = case.steps.culprits
    if not culprits and _most_are_done(case, node, missing):
        return list(node.waiting)
    return [rank for rank in node.waiting if rank in culprits] if culprits.isdisjoint(missing) else []


def _has_passed(case: Case, node: Node, rank: int) -> bool:
    """True if the rank ended well, has destroyed the group, or waits in another call."""
    info, last = case.evidence.ranks.get(rank), case.lasts.get(rank)
    is_in_call = info is not None and last is not None and last.in_call
    return is_in_call or has_destroyed(case, node, rank) or case.evidence.ending_of(rank) is Ending.CLEAN


def has_destroyed(case: Case, node: Node, rank: int) -> bool:
    """True if the rank has destroyed the node's group."""
    info = case.evidence.ranks.get(rank)
    return info is not None and info.has_destroyed(node.instance.group.id)


def _most_are_done(case: Case, node: Node, missing: Sequence[int]) -> bool:
    """True if most members destroyed the group without the call: ``if rank == 0: barrier()`` at the end.

    Ranks that end well without destroying the group may have been stopped midway, by a handler of SIGTERM. A member
    without evidence counts, too: if it waited, it would have left a file or sent a report. It may have done so on
    another machine, so there must be as many ranks that have destroyed the group as ranks that wait.
    """
    members = node.instance.members
    without = case.unheard.intersection(members).difference(missing)
    is_most = 2 * (len(missing) + len(without)) > len(members) and len(missing) >= len(node.waiting)
    return is_most and all(has_destroyed(case, node, rank) for rank in missing)


def not_done(case: Case, node: Node, missing: Sequence[int]) -> Sequence[int]:
    """Return the ranks that may still make the call: those that have not destroyed the group and ended well.

    If all have, return all of them.
    """
    found = [
        rank
        for rank in missing
        if case.evidence.ending_of(rank) is not Ending.CLEAN or not has_destroyed(case, node, rank)
    ]
    return found or missing


def others(case: Case, culprits: Sequence[int]) -> Sequence[int]:
    """Return the culprits that are known not to wait, or to be out of step; if there are none, all culprits."""
    known = [rank for rank in culprits if not may_wait(case, rank) or rank in case.steps.culprits]
    return known or culprits


def last_of_all(case: Case, culprits: Sequence[int]) -> Instance | None:
    """Return the instance after which none of its members, including these ranks, has enqueued a call, or None."""
    last = case.lasts.get(culprits[0])
    key = instance_key(last.call) if last is not None else None
    instance = case.instances.get(key) if key is not None else None
    if instance is None or len(instance.members) < 2 or not set(culprits) <= set(instance.members):
        return None
    calls = [(instance.calls.get(rank), case.lasts.get(rank)) for rank in instance.members]
    same = all(own is not None and newest is not None and own[-1] is newest.call for own, newest in calls)
    return instance if same else None
