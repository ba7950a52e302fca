"""Process groups that some ranks create in another order, or with another meaning, than other ranks.

Source of the rule: c10d names a group by the number of groups created before it. So ranks that create different groups
under one number connect to each other's group, or wait for ranks that never come. (torch.distributed.new_group: all
processes must enter it, in the same order.)

Such a difference is a fault only if it has done harm:

* a rank waits in the call itself, or in a collective of a group of that name,
* a rank waits in a later creation, while a rank is seen to be shifted against the others, or
* calls in a group of that name do not fit together.

Ranks may describe a group differently without harm. Groups without a common member may get one name, unless their
members meet as they connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from otel_fr.match.facts.calls import is_waiting
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.mismatch import Mismatch, judge
from otel_fr.match.model import Evidence

Meaning = tuple[tuple[int, ...], str]
"""Members and description of a group."""


def first_mismatch(evidence: Evidence, own: Sequence[Instance], mismatched: Iterable[str]) -> Mismatch | None:
    """Return the first creation of different groups under one number that is a fault, or None.

    Args:
        own: the creations of one default group, in the order of their numbers.
        mismatched: c10d's names of groups with calls that do not fit together.
    """
    found = [bad for bad in map(judge, own) if bad is not None]
    if not found:
        return None
    meanings = {instance.sequence_id: _meanings(instance) for instance in own}
    waits = [i.sequence_id for i in own if any(is_waiting(i.call(r), evidence.window) for r in i.calls)]
    named = _waited_names(evidence).union(mismatched)
    for bad in found:
        number = bad.instance.sequence_id
        is_shifted = _is_shifted(number, meanings)
        awaited = number in waits or not named.isdisjoint(names_of(bad.instance))
        if _collide(bad.instance, evidence.window):
            return _by_votes(bad, meanings)
        if (awaited and (is_shifted or _meet(bad.instance))) or (is_shifted and max(waits, default=0) > number):
            return _by_votes(bad, meanings)
    return None


def is_in_another_order(instances: Mapping[InstanceKey, Instance], bad: Mismatch) -> bool:
    """True if a rank creates here what the others create at the next number, and the other way round."""
    instance = bad.instance
    after = instances.get((*instance.key[:2], instance.sequence_id + 1))
    if after is None:
        return False
    here, there = _meanings(instance), _meanings(after)
    others = [rank for rank in here if rank not in bad.differing and rank in there]
    return any(
        here[rank] == there[other] and there.get(rank) == here[other] for rank in bad.differing for other in others
    )


def names_of(instance: Instance) -> set[str]:
    """Return c10d's names of the groups that its calls create."""
    created = (instance.call(rank).signature.new_group for rank in instance.calls)
    return {new.name for new in created if new is not None}


def _meet(instance: Instance) -> bool:
    """True if a rank waits for another rank that creates a group of other members."""
    created = [(r, new) for r in instance.calls if (new := instance.call(r).signature.new_group) is not None]
    if any(new.awaits_all for _, new in created):
        return len({new.ranks for _, new in created}) > 1
    members: dict[tuple[int, ...], set[int]] = {}
    for rank, new in created:
        members.setdefault(new.ranks, set()).add(rank)
    return any(
        not callers.isdisjoint(ranks) for ranks in members for other, callers in members.items() if other != ranks
    )


def _collide(instance: Instance, window: float) -> bool:
    """True if a rank waits although all members of these groups have come: it has met a rank with another group.

    Source of the rule: backends exchange addresses in the job's store, under the group's name.
    """
    calls = [instance.call(rank) for rank in instance.calls]
    created = {call.signature.new_group for call in calls}
    members = {rank for new in created if new is not None for rank in new.ranks}
    return members <= instance.calls.keys() and any(is_waiting(call, window) for call in calls)


def _meanings(instance: Instance) -> dict[int, Meaning]:
    found = {}
    for rank in sorted(instance.calls):
        new = instance.call(rank).signature.new_group
        if new is not None:
            found[rank] = new.ranks, new.description
    return found


def _waited_names(evidence: Evidence) -> set[str]:
    """Return c10d's names of the groups in whose collectives a rank waits."""
    calls = (call for call in evidence.calls if call.stream != "group" and call.group in evidence.groups)
    return {evidence.groups[call.group].name for call in calls if is_waiting(call, evidence.window)}


def _is_shifted(number: int, meanings: Mapping[int, Mapping[int, Meaning]]) -> bool:
    """True if two ranks create different groups here, and one creates the other's group at another number."""
    here = meanings[number]
    elsewhere: dict[Meaning, set[int]] = {}
    for other, of_rank in meanings.items():
        if other != number:
            for rank, meaning in of_rank.items():
                elsewhere.setdefault(meaning, set()).add(rank)
    return any(
        here[rank] != meaning for meaning in set(here.values()) for rank in elsewhere.get(meaning, ()) if rank in here
    )


def _by_votes(bad: Mismatch, meanings: Mapping[int, Mapping[int, Meaning]]) -> Mismatch:
    """Return the mismatch with the ranks that differ from a strict majority.

    A rank with a later call, but none here, has created a group here without becoming its member. It agrees with every
    call that creates a group without it.
    """
    number = bad.instance.sequence_id
    here = meanings[number]
    passed = {rank for other, of_rank in meanings.items() if other > number for rank in of_rank} - here.keys()
    voters = here.keys() | passed
    given: dict[Meaning, set[int]] = {}
    for rank, meaning in here.items():
        given.setdefault(meaning, set()).add(rank)
    votes = [ranks | passed.difference(meaning[0]) for meaning, ranks in given.items()]
    most = max(votes, key=len)
    has_majority = 2 * len(most) > len(voters) and sum(len(one) == len(most) for one in votes) == 1
    differing = tuple(rank for rank in here if not has_majority or rank not in most)
    return replace(bad, differing=differing, has_majority=has_majority)
