"""Instances whose ranks brought what does not fit together, and who is the odd one out."""

from __future__ import annotations

from dataclasses import dataclass

from otel_fr.match.instances import Instance, InstanceKey
from otel_fr.match.legal import Difference, compare
from otel_fr.match.model import Call, Category

_ORDER = (
    Category.OP_MISMATCH,
    Category.DTYPE_MISMATCH,
    Category.SIZE_MISMATCH,
    Category.ROOT_MISMATCH,
    Category.REDUCE_OP_MISMATCH,
)
"""The most telling difference first: another operation has other sizes, another dtype other bytes."""

MAX_CLASSES = 64
"""Different signatures compared with each other per instance; beyond it only with the first (time stays linear)."""


@dataclass(slots=True)
class Mismatch:
    """One instance that disagrees. ``odd`` is a strict majority's verdict; without one, all that disagree."""

    instance: Instance
    category: Category
    field: str
    values: dict[int, str]
    odd: tuple[int, ...]
    has_majority: bool


def _part(instance: Instance, a: int, b: int) -> tuple[Call, Call, Difference] | None:
    """The first disagreement of two ranks' calls, member by member of a batch.

    Batches of different length are not held against each other: one rank may be in the middle of its batch, or have
    lost the beginning of it.
    """
    ours, theirs = instance.calls[a], instance.calls[b]
    if len(ours) != len(theirs):
        return None
    for mine, other in zip(ours, theirs, strict=True):
        difference = compare(instance.group, mine, other)
        if difference is not None:
            return mine, other, difference
    return None


def _same_calls(instance: Instance) -> bool:
    """All ranks' signatures are equal and even: the healthy case, decided without looking at pairs."""
    ranks = iter(instance.calls)
    first = next(ranks)
    return all(_part(instance, first, rank) is None for rank in ranks)


def judge(instance: Instance) -> Mismatch | None:
    """The mismatch of one instance, or None."""
    ranks = sorted(instance.calls)
    if len(ranks) < 2:
        return None
    classes: dict[tuple[object, ...], list[int]] = {}
    for rank in ranks:
        classes.setdefault(tuple(call.signature for call in instance.calls[rank]), []).append(rank)
    if len(classes) <= 1 and _same_calls(instance):
        return None
    pairs = [(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1 :]]
    if len(classes) > MAX_CLASSES:
        pairs = [(ranks[0], rank) for rank in ranks[1:]]
    against: dict[int, set[int]] = {rank: set() for rank in ranks}
    found: list[tuple[int, int, int, Difference]] = []
    for a, b in pairs:
        part = _part(instance, a, b)
        if part is not None:
            against[a].add(b)
            against[b].add(a)
            found.append((_ORDER.index(part[2].category), a, b, part[2]))
    if not found:
        return None
    reference = min(ranks, key=lambda rank: (len(against[rank]), rank))
    has_majority = 2 * len(against[reference]) < len(ranks)
    odd = against[reference]
    if has_majority and not odd:
        # The reference has no piece in common with those who disagree. A root's list is right if it fits most members.
        root = instance.call(ranks[0]).signature.root
        odd = against.get(root, set()) if root is not None else set()
        has_majority = 0 < 2 * len(odd) < len(ranks)
    if not has_majority:
        odd = {rank for rank in ranks if against[rank]}
    _, a, b, difference = min(found, key=lambda f: (f[0], reference not in (f[1], f[2]), f[1], f[2]))
    values: dict[int, str] = {}
    for _, first, second, other in found:
        if other.field == difference.field:
            values.setdefault(first, other.first)
            values.setdefault(second, other.second)
    return Mismatch(instance, difference.category, difference.field, values, tuple(sorted(odd)), has_majority)


def first_mismatches(instances: dict[InstanceKey, Instance]) -> list[Mismatch]:
    """Per group and stream the mismatch with the lowest number: what comes after it in that group is shifted."""
    found: list[Mismatch] = []
    settled: set[tuple[str, str]] = set()
    for instance in sorted(instances.values(), key=lambda i: (i.group.id, i.stream, i.sequence_id)):
        place = (instance.group.id, instance.stream)
        if place in settled:
            continue
        mismatch = judge(instance)
        if mismatch is not None:
            found.append(mismatch)
            if instance.stream != "p2p":
                settled.add(place)
    return found


def shift_of(instances: dict[InstanceKey, Instance], mismatch: Mismatch) -> str:
    """``"one call more"`` or ``"one call less"`` if the odd rank seems to have made that, else ``""``.

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
    if odd in after.calls and compare(instance.group, after.call(odd), instance.call(other)) is None:
        return "one call more"
    if other in after.calls and compare(instance.group, instance.call(odd), after.call(other)) is None:
        return "one call less"
    return ""
