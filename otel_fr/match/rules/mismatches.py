"""Calls of one collective or message that do not fit together.

They are ordered as the job made them: by each rank's own order, and across ranks by the collectives they share. One
call comes before another if a rank made it first, or if a collective lies between them: one rank made it after the
first call, another rank before the second. If neither comes first, their names decide. No clocks are used.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from otel_fr.match.case import Case
from otel_fr.match.facts.aftermath import have_ended
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.mismatch import Mismatch, judge, shift_of
from otel_fr.match.facts.new_groups import is_in_another_order, names_of
from otel_fr.match.facts.ranks import was_stopped
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import Ending
from otel_fr.match.rules.claims import Claim, Claims, Stage
from otel_fr.match.texts import sentences
from otel_fr.match.texts.ranks import sharing_text


def mismatch(case: Case, _: Claims) -> Iterable[Mismatch]:
    """Calls of one collective or message that do not fit together, in the order of the ranks' own calls."""
    # Mismatches in a group come after those in its creation.
    if len(case.mismatches) < 2:
        return case.mismatches
    found = positions(case.instances, {bad.instance.key for bad in case.mismatches})
    creations = [bad.instance for bad in case.mismatches if bad.instance.stream == "group"]
    created = {name: found[one.key] for one in creations for name in names_of(one)}
    return sorted(
        case.mismatches,
        key=lambda bad: (
            max(found[bad.instance.key], created.get(bad.instance.group.name, 0)),
            bad.instance.stream != "group",
            bad.instance.name,
        ),
    )


def threads_share_group(case: Case, claims: Claims, bad: Mismatch) -> Claim | None:
    """The calls come from several threads, and threads of some ranks are in calls of the group at once: chance orders
    them, and these ranks are named."""
    group = bad.instance.group
    if len({call.thread for own in bad.instance.calls.values() for call in own}) < 2 or group.id not in case.threads:
        return None
    by_threads = case.threads[group.id]
    shared = tuple(sorted({rank for ranks in by_threads.values() for rank in ranks}))
    told = f"{sharing_text(group, *next(iter(by_threads.items())))}, so their order is left to chance: "
    return _claim(case, claims, bad, replace(bad, differing=shared, has_majority=True), told=told)


def calls_differ(case: Case, claims: Claims, bad: Mismatch) -> Claim:
    """Operation, sizes, dtype, root or reduce op differ where they must agree. A strict majority shows which ranks are
    wrong; without one, all ranks that disagree are named."""
    is_shift = bad.has_majority and not is_in_another_order(case.instances, bad)
    return _claim(case, claims, bad, bad, shift_of(case.instances, bad) if is_shift else "")


def _claim(case: Case, claims: Claims, bad: Mismatch, said: Mismatch, shift: str = "", told: str = "") -> Claim:
    """Return the claim about calls that do not fit together. ``said``: the same mismatch with the ranks to name."""
    instance = bad.instance
    own, waiting = case.nodes.get(instance.key), _held_up(case, bad)
    behind = {key: node for key, node in case.nodes.items() if node.mismatch is bad}
    explained = {instance.key, *behind}
    explained.difference_update(key for key, node in behind.items() if _lacks_ranks(case, node, bad))
    age, waits = None, ""
    if own is not None and set(waiting) <= set(own.waiting):
        age = own.age
        waits = sentences.waits_text(case.evidence, instance, waiting, age) if waiting else ""
    return Claim(
        category=bad.category,
        culprits=said.differing,
        waiting=waiting,
        said=[told + sentences.mismatch_text(said, shift, waits, case.machines)],
        instance=instance,
        field=bad.field,
        values=dict(sorted(bad.values.items())),
        age=age,
        caused_by=_explained_by(case, claims, bad),
        explains=tuple(explained),
        is_over=bad.is_over,
    )


def _lacks_ranks(case: Case, node: Node, bad: Mismatch) -> bool:
    """True if the node lacks ranks that run and are in no call, or had been away when they were stopped from outside.

    This is a second fault.

    Args:
        node: the mismatched call, or a later one.
    """
    if not node.idle or node.instance.p2p is not None or bad.is_over:
        return False
    if node.instance is not bad.instance and not _has_freed(case, bad, node.idle):
        return False
    is_shown = not (node.undecided or node.next or node.dead)
    return is_shown and all(_has_not_come(case, rank) for rank in node.idle)


def _has_not_come(case: Case, rank: int) -> bool:
    info = case.evidence.ranks.get(rank)
    if info is None or info.ending is Ending.RUNNING:
        return info is not None
    return was_stopped(info) and (info.idle or 0.0) >= case.evidence.window


def _has_freed(case: Case, bad: Mismatch, ranks: Iterable[int]) -> bool:
    """True if the mismatched call has ended, and only ranks other than these may be out of step since then."""
    is_of_others = bad.has_majority and set(bad.differing).isdisjoint(ranks)
    return is_of_others and have_ended(bad.instance) and not shift_of(case.instances, bad)


def _held_up(case: Case, bad: Mismatch) -> tuple[int, ...]:
    """Return the ranks that wait in the mismatched call or, if the others have continued, in later calls."""
    own = case.nodes[bad.instance.key].waiting if bad.instance.key in case.nodes else ()
    behind = {rank for node in case.nodes.values() if node.mismatch is bad for rank in node.waiting}
    return tuple(sorted(set(own).difference(bad.differing) or behind.difference(bad.differing)))


def _explained_by(case: Case, claims: Claims, bad: Mismatch) -> str | None:
    """Return the key of an earlier mismatch of the same ranks.

    Without a majority, it may also be an earlier mismatch without whose culprits all calls agree.
    """
    found = claims.same_culprits(case, bad.differing, bad.category)
    if found is not None or bad.has_majority:
        return found
    for cause in claims.lasting:
        calls = {rank: own for rank, own in bad.instance.calls.items() if rank not in cause.culprits}
        is_part = 0 < len(calls) < len(bad.instance.calls)
        if is_part and judge(replace(bad.instance, calls=calls)) is None:
            return cause.key
    return None


def positions(instances: Mapping[InstanceKey, Instance], wanted: Collection[InstanceKey]) -> dict[InstanceKey, int]:
    """Number the wanted instances in order. Time is linear in the calls up to the last of them.

    Ranks that are out of step may have made two collectives in opposite orders. Then the first is the one that a rank
    made after the fewest calls.
    """
    programs: dict[int, list[tuple[int, InstanceKey]]] = {}
    for key, instance in instances.items():
        for rank, calls in instance.calls.items():
            programs.setdefault(rank, []).append((calls[0].record, key))
    for program in programs.values():
        program.sort(key=lambda item: item[0])
    return _Walk(instances, programs).to(wanted)


class _Walk:
    """Lets all ranks walk through their calls. The callers of a collective pass it together."""

    def __init__(
        self, instances: Mapping[InstanceKey, Instance], programs: Mapping[int, list[tuple[int, InstanceKey]]]
    ) -> None:
        self._instances, self._programs = instances, programs
        self._at = dict.fromkeys(programs, 0)
        self._here: dict[InstanceKey, int] = {}
        """How many ranks have reached an instance."""
        self._ready: list[tuple[str, InstanceKey]] = []
        """Instances that all their callers have reached: a heap by name."""
        self._passed: set[InstanceKey] = set()
        for rank in sorted(programs):
            self._arrive(rank)

    def to(self, wanted: Collection[InstanceKey]) -> dict[InstanceKey, int]:
        found: dict[InstanceKey, int] = {}
        number = 0
        while len(found) < len(wanted):
            key = heapq.heappop(self._ready)[1] if self._ready else self._nearest()
            if key in self._passed:
                continue
            self._passed.add(key)
            number += 1
            if key in wanted:
                found[key] = number
            for rank in self._instances[key].calls:
                at, program = self._at[rank], self._programs[rank]
                if at < len(program) and program[at][1] == key:
                    self._arrive(rank)
        return found

    def _arrive(self, rank: int) -> None:
        program, at = self._programs[rank], self._at[rank]
        while at < len(program) and program[at][1] in self._passed:
            at += 1
        self._at[rank] = at
        if at == len(program):
            return
        key = program[at][1]
        here = self._here[key] = self._here.get(key, 0) + 1
        if here == len(self._instances[key].calls):
            heapq.heappush(self._ready, (self._instances[key].name, key))

    def _nearest(self) -> InstanceKey:
        heads = [(record, key) for rank, at in self._at.items() for record, key in self._programs[rank][at : at + 1]]
        return min((record, self._instances[key].name, key) for record, key in heads)[2]


STAGE = Stage(mismatch, (threads_share_group, calls_differ))
