"""Finds instances whose calls do not fit together, and the ranks that are at fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.legal import (
    Difference,
    alike,
    common_part,
    compare,
    flat_difference,
    is_even,
    own_difference,
    piece_difference,
    totals,
    unfit_pairs,
)
from otel_fr.match.finding import Category
from otel_fr.match.model import Call, Group, Signature
from otel_fr.operations import LISTS, PIECEWISE, pieces

_ORDER = (
    Category.OP_MISMATCH,
    Category.DTYPE_MISMATCH,
    Category.SIZE_MISMATCH,
    Category.ROOT_MISMATCH,
    Category.REDUCE_OP_MISMATCH,
)
"""Most specific difference first: another operation implies other sizes, another dtype other bytes."""

MAX_CLASSES = 64
"""Distinct signatures of an instance that are compared in pairs. If there are more: each with the most common one."""

MAX_PAIRS = 8
"""Members of an all_to_all whose pieces are compared in pairs. If there are more, `unfit_pairs` compares arrays."""

MAX_SHIFTED = 100
"""Instances after a mismatch that are searched to find whether a rank made one call more or one fewer."""
_SHIFTS = {(1, 0): "one call more", (0, 1): "one call fewer"}
"""How many numbers later the calls are that fit (the differing rank's, the others') -> what the rank made."""


@dataclass(slots=True, kw_only=True)
class Mismatch:
    """An instance whose calls disagree.

    Attributes:
        differing: the ranks that differ from a strict majority; all ranks that disagree, if there is none.
        is_own: each of these calls is wrong, whatever the other ranks called.
        is_over: all members continued in step after it, so it blocks no later call (`otel_fr.match.facts.aftermath`).
    """

    instance: Instance
    category: Category
    field: str
    values: dict[int, str]
    differing: tuple[int, ...]
    has_majority: bool
    is_own: bool = False
    is_over: bool = False


class _Conflict(NamedTuple):
    """Two sets of ranks whose calls disagree by ``difference``."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    difference: Difference


def judge(instance: Instance) -> Mismatch | None:
    """Return the mismatch of one instance, or None. Time is linear in the ranks, except for the pairs of an all_to_all.

    Batches are compared call by call. Ranks whose batch has another length than most are left out: they may be in the
    middle of it, or have lost its beginning.
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
    """Return the mismatch among one call of each rank. ``calls`` is in the order of the ranks."""
    distinct = {call.signature: rank for rank, call in reversed(calls.items())}
    if len(calls) > 1:
        conflicts = _between_classes(calls) if len(distinct) > 1 else []
        if not any(c.difference.category in (Category.OP_MISMATCH, Category.DTYPE_MISMATCH) for c in conflicts):
            conflicts += _between_pieces(instance.group, calls, distinct)
        if conflicts:
            return _verdict(instance, calls, conflicts)
    return _own_fault(instance, calls, distinct) or _totals(instance, calls, distinct)


def _between_classes(calls: Mapping[int, Call]) -> list[_Conflict]:
    """Conflicts that do not depend on the ranks' positions: one comparison per pair of distinct signatures."""
    kinds = _alike(calls)
    pairs: Iterable[tuple[list[int], list[int]]] = combinations(kinds, 2)
    if len(kinds) > MAX_CLASSES:
        reference = max(kinds, key=_weight)
        pairs = [(reference, ranks) for ranks in kinds if ranks is not reference]
    found: list[_Conflict] = []
    for ours, theirs in pairs:
        difference = alike(calls[ours[0]].signature, calls[theirs[0]].signature)
        if difference is not None:
            found.append(_Conflict(tuple(ours), tuple(theirs), difference))
    return found


def _alike(calls: Mapping[int, Call]) -> list[list[int]]:
    """Group the ranks by the common part of their calls."""
    classes: dict[Signature, list[int]] = {}
    for rank, call in calls.items():
        classes.setdefault(common_part(call.signature), []).append(rank)
    return list(classes.values())


def _weight(ranks: Sequence[int]) -> tuple[int, int]:
    return len(ranks), -ranks[0]


def _between_pieces(group: Group, calls: Mapping[int, Call], distinct: Mapping[Signature, int]) -> list[_Conflict]:
    """Conflicts between what one member sends and another receives."""
    first = next(iter(distinct))
    if first.operation not in PIECEWISE or (len(distinct) == 1 and is_even(first, len(group.ranks))):
        return []
    if first.operation in LISTS:
        return _against_lists(group, calls)
    ranks = list(calls)
    if pieces(first.operation) == "root":
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
    """Compare each rank's own piece with the list that most ranks have. (Differing lists are a conflict already.)"""
    most = max(_alike(calls), key=_weight)
    found: list[_Conflict] = []
    for rank, call in calls.items():
        difference = piece_difference(group, calls[most[0]], call)
        others = tuple(holder for holder in most if holder != rank)
        if difference is not None and others:
            turned = difference._replace(first=difference.second, second=difference.first)
            found.append(_Conflict(others, (rank,), turned))
    return found


def _verdict(instance: Instance, calls: Mapping[int, Call], conflicts: list[_Conflict]) -> Mismatch:
    """Find the ranks at fault, by majority, and the most specific difference."""
    against = Counter[int]()
    for conflict in conflicts:
        for rank in conflict.ours:
            against[rank] += len(conflict.theirs)
        for rank in conflict.theirs:
            against[rank] += len(conflict.ours)
    voters = _voters(calls, conflicts)
    reference = min(voters, key=lambda rank: (against[rank], rank))
    differing = _opponents(conflicts, reference)
    if not differing:
        # The reference shares no piece with the ranks that disagree. A root's list is right if it fits most members; a
        # rank that is part of each of several mismatches is the one at fault.
        root = calls[reference].signature.root
        if root is not None and root in calls and against[root]:
            differing = _opponents(conflicts, root)
        elif len(conflicts) > 1 and all(len(c.ours) == len(c.theirs) == 1 for c in conflicts):
            differing = set.intersection(*({*c.ours, *c.theirs} for c in conflicts))
    has_majority = 0 < 2 * len(differing) < len(voters)
    if not has_majority:
        differing = {rank for rank in calls if against[rank]}
    shown = min(
        conflicts,
        key=lambda c: (
            _ORDER.index(c.difference.category),
            reference not in c.ours and reference not in c.theirs,
            c.ours,
            c.theirs,
        ),
    )
    field = shown.difference.field
    values: dict[int, str] = {}
    for conflict in conflicts:
        if conflict.difference.field == field:
            for rank in conflict.ours:
                values.setdefault(rank, conflict.difference.first)
            for rank in conflict.theirs:
                values.setdefault(rank, conflict.difference.second)
    return Mismatch(
        instance=instance,
        category=shown.difference.category,
        field=field,
        values=values,
        differing=tuple(sorted(differing)),
        has_majority=has_majority,
    )


def _voters(calls: Mapping[int, Call], conflicts: Iterable[_Conflict]) -> Collection[int]:
    """Return the ranks that count for a majority: if only reduce ops or roots differ, those that recorded theirs."""
    categories = {conflict.difference.category for conflict in conflicts}
    if categories == {Category.REDUCE_OP_MISMATCH}:
        return [rank for rank, call in calls.items() if call.signature.reduce_op is not None]
    if categories == {Category.ROOT_MISMATCH}:
        return [rank for rank, call in calls.items() if call.signature.root is not None]
    return calls


def _opponents(conflicts: Iterable[_Conflict], rank: int) -> set[int]:
    found: set[int] = set()
    for conflict in conflicts:
        if rank in conflict.ours:
            found.update(conflict.theirs)
        elif rank in conflict.theirs:
            found.update(conflict.ours)
    return found


def _own_fault(instance: Instance, calls: Mapping[int, Call], distinct: Mapping[Signature, int]) -> Mismatch | None:
    """Find calls that are wrong regardless of the other ranks' calls."""
    differences = {signature: own_difference(len(instance.group.ranks), signature) for signature in distinct}
    wrong = {rank: d for rank, call in calls.items() if (d := differences[call.signature]) is not None}
    return _wrong_alone(instance, wrong, is_own=True) if wrong else None


def _wrong_alone(instance: Instance, wrong: Mapping[int, Difference], *, is_own: bool) -> Mismatch:
    """Return the mismatch of calls that are wrong even if no majority differs from them."""
    shown = wrong[min(wrong)]
    values = {rank: f"{d.first}, should be {d.second}" for rank, d in wrong.items() if d.field == shown.field}
    return Mismatch(
        instance=instance,
        category=shown.category,
        field=shown.field,
        values=values,
        differing=tuple(wrong),
        has_majority=True,
        is_own=is_own,
    )


def _totals(instance: Instance, calls: Mapping[int, Call], distinct: Mapping[Signature, int]) -> Mismatch | None:
    """Compare how much all members together send and receive, if their pieces are not recorded one by one."""
    first = next(iter(distinct))
    if first.operation not in PIECEWISE or set(calls) != set(instance.members):
        return None
    if len(distinct) == 1 and is_even(first, len(instance.members)):
        return None
    sums = totals([call.signature for call in calls.values()])
    if sums is None or sums[0] == sums[1]:
        return None
    odd = {rank: d for rank, call in calls.items() if (d := flat_difference(len(instance.members), call.signature))}
    if odd and (2 * len(odd) < len(calls) or len(distinct) == 1):
        # The others' lists have a piece of their size for each member; or all ranks made the same wrong call.
        return _wrong_alone(instance, odd, is_own=False)
    value = f"{sums[0]} elements sent and {sums[1]} received in all"
    return Mismatch(
        instance=instance,
        category=Category.SIZE_MISMATCH,
        field="sizes",
        values=dict.fromkeys(calls, value),
        differing=tuple(calls),
        has_majority=False,
    )


def shift_of(instances: Mapping[InstanceKey, Instance], mismatch: Mismatch) -> str:
    """Return ``"one call more"`` or ``"one call fewer"`` if the differing rank seems to have made that, else ``""``.

    The next instances show it: the differing rank's next calls fit the others' current ones (it made one call more), or
    its current calls fit the others' next ones (it left one out). In a program that repeats its calls, both can hold
    for a while. Then the one that holds for longer counts; if neither does, ``"one call more or one fewer"``.
    """
    instance = mismatch.instance
    others = [rank for rank in instance.calls if rank not in mismatch.differing]
    if len(instance.key) != 3 or len(mismatch.differing) != 1 or not others:
        return ""
    rank, other = mismatch.differing[0], others[0]
    group, stream, number = instance.key

    def fits(own: int, theirs: int) -> bool | None:
        """True if the calls fit that are so many numbers later; None: one of them is not known."""
        one, two = instances.get((group, stream, number + own)), instances.get((group, stream, number + theirs))
        if one is None or two is None or rank not in one.calls or other not in two.calls:
            return None
        return compare(instance.group, one.call(rank), two.call(other)) is None

    if fits(1, 1):
        return ""  # in step again
    left = [shift for shift in _SHIFTS if fits(*shift)]
    later = 0
    while len(left) > 1 and later < MAX_SHIFTED:
        later += 1
        found = {shift: fits(later + shift[0], later + shift[1]) for shift in left}
        left = [shift for shift in left if found[shift] is not False] or left
        if not all(found.values()):
            break
    return _SHIFTS[left[0]] if len(left) == 1 else "one call more or one fewer" if left else ""
