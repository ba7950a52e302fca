"""Instances whose ranks brought what does not fit together, and who is the odd one out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from otel_fr.match.instances import Instance, InstanceKey
from otel_fr.match.legal import (
    Difference,
    alike,
    common_part,
    compare,
    has_pieces,
    is_even,
    own_difference,
    piece_difference,
    totals,
    unfit_pairs,
)
from otel_fr.match.model import Call, Category, Group, Signature

_ORDER = (
    Category.OP_MISMATCH,
    Category.DTYPE_MISMATCH,
    Category.SIZE_MISMATCH,
    Category.ROOT_MISMATCH,
    Category.REDUCE_OP_MISMATCH,
)
"""The most telling difference first: another operation has other sizes, another dtype other bytes."""

MAX_CLASSES = 64
"""Different signatures compared with each other per instance; beyond it only with the commonest (linear time)."""

MAX_PAIRS = 8
"""Members whose pieces are compared each with each; beyond it arrays do (all_to_all), or the lists' majority."""


@dataclass(slots=True, kw_only=True)
class Mismatch:
    """One instance that disagrees. ``odd`` is a strict majority's verdict; without one, all that disagree."""

    instance: Instance
    category: Category
    field: str
    values: dict[int, str]
    odd: tuple[int, ...]
    has_majority: bool


class _Conflict(NamedTuple):
    """Two sets of ranks whose calls do not fit together, in the eyes of ``difference``."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    difference: Difference


def judge(instance: Instance) -> Mismatch | None:
    """The mismatch of one instance, or None. Time is linear in the ranks, but for what all_to_all brings per pair.

    Batches are judged member by member. Batches of another length than most are left out: such a rank may be in the
    middle of its batch, or have lost the beginning of it.
    """
    calls = instance.calls
    if instance.stream == "p2p" and len(calls) < 2:
        return None
    lengths = Counter(len(own) for own in calls.values())
    length = max(lengths, key=lambda n: (lengths[n], n))
    ranks = sorted(rank for rank, own in calls.items() if len(own) == length)
    for position in range(length):
        found = _judge(instance, {rank: calls[rank][position] for rank in ranks})
        if found is not None:
            return found
    return None


def _judge(instance: Instance, calls: dict[int, Call]) -> Mismatch | None:
    """The mismatch among one call of each rank (in the order of ranks)."""
    distinct = {call.signature: rank for rank, call in reversed(calls.items())}
    if len(calls) > 1:
        conflicts = _between_classes(calls) if len(distinct) > 1 else []
        if not any(c.difference.category in (Category.OP_MISMATCH, Category.DTYPE_MISMATCH) for c in conflicts):
            conflicts += _between_pieces(instance.group, calls, distinct)
        if conflicts:
            return _verdict(instance, calls, conflicts)
    return _own_fault(instance, calls, distinct) or _totals(instance, calls, distinct)


def _between_classes(calls: Mapping[int, Call]) -> list[_Conflict]:
    """Conflicts that do not depend on the ranks' places: one comparison for all ranks that brought the same."""
    classes: dict[Signature, list[int]] = {}
    for rank, call in calls.items():
        classes.setdefault(common_part(call.signature), []).append(rank)
    kinds = list(classes.values())
    pairs: Iterable[tuple[list[int], list[int]]] = combinations(kinds, 2)
    if len(kinds) > MAX_CLASSES:
        reference = max(kinds, key=lambda ranks: (len(ranks), -ranks[0]))
        pairs = [(reference, ranks) for ranks in kinds if ranks is not reference]
    found: list[_Conflict] = []
    for ours, theirs in pairs:
        difference = alike(calls[ours[0]].signature, calls[theirs[0]].signature)
        if difference is not None:
            found.append(_Conflict(tuple(ours), tuple(theirs), difference))
    return found


def _between_pieces(group: Group, calls: Mapping[int, Call], distinct: Mapping[Signature, int]) -> list[_Conflict]:
    """Conflicts of what one member gives with what another takes."""
    first = next(iter(distinct))
    if not has_pieces(first) or (len(distinct) == 1 and is_even(first)):
        return []
    if first.operation in ("all_gather", "reduce_scatter"):
        return _against_lists(group, calls)
    ranks = list(calls)
    if first.operation in ("gather", "scatter"):
        root = next((s.root for s in distinct if s.root in calls), None)
        pairs: Iterable[tuple[int, int]] = [(root, r) for r in ranks if r != root] if root is not None else []
    elif len(ranks) > MAX_PAIRS:
        pairs = unfit_pairs(group, {rank: call.signature for rank, call in calls.items()})
    else:
        pairs = combinations(ranks, 2)
    found: list[_Conflict] = []
    for a, b in pairs:
        difference = compare(group, calls[a], calls[b])
        if difference is not None and difference.category is Category.SIZE_MISMATCH:
            found.append(_Conflict((a,), (b,), difference))
    return found


def _against_lists(group: Group, calls: Mapping[int, Call]) -> list[_Conflict]:
    """Each rank's own piece against the list that most ranks have. (Lists that differ are a conflict already.)"""
    holders: dict[Signature, list[int]] = {}
    for rank, call in calls.items():
        holders.setdefault(common_part(call.signature), []).append(rank)
    most = max(holders.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    found: list[_Conflict] = []
    for rank, call in calls.items():
        difference = piece_difference(group, calls[most[0]], call)
        others = tuple(holder for holder in most if holder != rank)
        if difference is not None and others:
            turned = difference._replace(first=difference.second, second=difference.first)
            found.append(_Conflict(others, (rank,), turned))
    return found


def _verdict(instance: Instance, calls: Mapping[int, Call], conflicts: list[_Conflict]) -> Mismatch:
    """Who is the odd one out, by majority, and what tells it best."""
    against = Counter[int]()
    for conflict in conflicts:
        for rank in conflict.ours:
            against[rank] += len(conflict.theirs)
        for rank in conflict.theirs:
            against[rank] += len(conflict.ours)
    reference = min(calls, key=lambda rank: (against[rank], rank))
    odd = _opponents(conflicts, reference)
    if not odd:
        # The reference has no piece in common with those who disagree. A root's list is right if it fits most members;
        # a rank that is in every one of several disagreements has brought what is wrong.
        root = calls[reference].signature.root
        if root is not None and root in calls and against[root]:
            odd = _opponents(conflicts, root)
        elif len(conflicts) > 1 and all(len(c.ours) == len(c.theirs) == 1 for c in conflicts):
            odd = set.intersection(*({*c.ours, *c.theirs} for c in conflicts))
    has_majority = 0 < 2 * len(odd) < len(calls)
    if not has_majority:
        odd = {rank for rank in calls if against[rank]}
    told = min(
        conflicts,
        key=lambda c: (
            _ORDER.index(c.difference.category),
            reference not in c.ours and reference not in c.theirs,
            c.ours,
            c.theirs,
        ),
    )
    field = told.difference.field
    values: dict[int, str] = {}
    for conflict in conflicts:
        if conflict.difference.field == field:
            for rank in conflict.ours:
                values.setdefault(rank, conflict.difference.first)
            for rank in conflict.theirs:
                values.setdefault(rank, conflict.difference.second)
    return Mismatch(
        instance=instance,
        category=told.difference.category,
        field=field,
        values=values,
        odd=tuple(sorted(odd)),
        has_majority=has_majority,
    )


def _opponents(conflicts: Iterable[_Conflict], rank: int) -> set[int]:
    found: set[int] = set()
    for conflict in conflicts:
        if rank in conflict.ours:
            found.update(conflict.theirs)
        elif rank in conflict.theirs:
            found.update(conflict.ours)
    return found


def _own_fault(instance: Instance, calls: Mapping[int, Call], distinct: Mapping[Signature, int]) -> Mismatch | None:
    """Calls that are wrong in themselves, whatever the others bring."""
    differences = {signature: own_difference(len(instance.group.ranks), signature) for signature in distinct}
    wrong = {rank: d for rank, call in calls.items() if (d := differences[call.signature]) is not None}
    if not wrong:
        return None
    told = wrong[min(wrong)]
    values = {rank: f"{d.first}, should be {d.second}" for rank, d in wrong.items() if d.field == told.field}
    # What is wrong in itself needs no majority.
    return Mismatch(
        instance=instance, category=told.category, field=told.field, values=values, odd=tuple(wrong), has_majority=True
    )


def _totals(instance: Instance, calls: Mapping[int, Call], distinct: Mapping[Signature, int]) -> Mismatch | None:
    """Pieces that nobody recorded one by one: what all send together must be what all take."""
    first = next(iter(distinct))
    if not has_pieces(first) or set(calls) != set(instance.members) or (len(distinct) == 1 and is_even(first)):
        return None
    sums = totals([call.signature for call in calls.values()])
    if sums is None or sums[0] == sums[1]:
        return None
    value = f"{sums[0]} elements sent and {sums[1]} taken by all together"
    return Mismatch(
        instance=instance,
        category=Category.SIZE_MISMATCH,
        field="sizes",
        values=dict.fromkeys(calls, value),
        odd=tuple(calls),
        has_majority=False,
    )


def first_mismatches(instances: dict[InstanceKey, Instance]) -> list[Mismatch]:
    """Per group and stream the mismatch with the lowest number: what comes after it in that group is shifted."""
    found: list[Mismatch] = []
    decided: set[tuple[str, str]] = set()
    for instance in sorted(instances.values(), key=lambda i: (i.group.id, i.stream, i.sequence_id)):
        place = (instance.group.id, instance.stream)
        if place in decided:
            continue
        mismatch = judge(instance)
        if mismatch is not None:
            found.append(mismatch)
            if instance.stream != "p2p":
                decided.add(place)
    return found


def shift_of(instances: dict[InstanceKey, Instance], mismatch: Mismatch) -> str:
    """``"one call more"`` or ``"one call fewer"`` if the odd rank seems to have made that, else ``""``.

    Seen from its neighbours: the odd rank's next call fits what the others call now (it has one more), or what it
    calls now fits the others' next (it left one out).
    """
    instance = mismatch.instance
    others = [rank for rank in instance.calls if rank not in mismatch.odd]
    if len(instance.key) != 3 or len(mismatch.odd) != 1 or not others:
        return ""
    odd, other = mismatch.odd[0], others[0]
    after = instances.get((instance.key[0], instance.key[1], instance.key[2] + 1))
    if after is None:
        return ""
    both = odd in after.calls and other in after.calls
    if both and compare(instance.group, after.call(odd), after.call(other)) is None:
        return ""  # in step again
    if odd in after.calls and compare(instance.group, after.call(odd), instance.call(other)) is None:
        return "one call more"
    if other in after.calls and compare(instance.group, instance.call(odd), after.call(other)) is None:
        return "one call fewer"
    return ""
