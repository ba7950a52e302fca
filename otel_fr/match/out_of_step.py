"""Findings about ranks that are out of step (`otel_fr.match.steps`): in cycles, behind the end of others, in stalls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from otel_fr.match import sentences, step_sentences
from otel_fr.match.case import Case
from otel_fr.match.instances import Instance, InstanceKey
from otel_fr.match.model import Category, Ending
from otel_fr.match.nodes import Node
from otel_fr.match.steps import Steps


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Ranks of a cycle that are out of step, and a collective in which others wait for them.

    Attributes:
        key: the instance that they did not join. taken: the one in which they wait instead.
        swapped: the two collectives may as well be in the wrong order: the ranks are behind by one call, and both
            groups are used about equally often.
        or_else: ranks that are out of step if these are not; (): the evidence allows no such doubt.
    """

    ranks: tuple[int, ...]
    key: InstanceKey
    taken: Instance
    swapped: bool
    or_else: tuple[int, ...]


def left_out(nodes: Mapping[InstanceKey, Node], cycle: list[InstanceKey], steps: Steps) -> list[LeftOut]:
    """The ranks of a cycle that left out calls or made calls too many; empty: none is known to have."""
    inside = set(cycle)
    places: dict[int, list[tuple[InstanceKey, InstanceKey]]] = {}
    for key in cycle:
        for rank, targets in nodes[key].next.items():
            if rank in nodes[key].instance.calls:
                continue  # It has joined it; its device has not begun it.
            for target in targets:
                if len(key) == len(target) == 3 and target in inside:
                    places.setdefault(rank, []).append((key, target))
    or_else: tuple[int, ...] = ()
    culprits = steps.culprits & places.keys()
    if not culprits:
        culprits, or_else = _ahead_in_the_larger(nodes, places, steps)
    found: dict[tuple[InstanceKey, InstanceKey], list[int]] = {}
    for rank in sorted(culprits):
        found.setdefault(min(places[rank], key=lambda place: _most_telling(nodes, place)), []).append(rank)
    return [
        LeftOut(
            tuple(ranks),
            key,
            nodes[taken].instance,
            _may_be_swapped(nodes[key].instance, nodes[taken].instance)
            and all(steps.behind(rank) <= 1 for rank in ranks),
            or_else,
        )
        for (key, taken), ranks in found.items()
    ]


def _most_telling(nodes: Mapping[InstanceKey, Node], place: tuple[InstanceKey, InstanceKey]) -> tuple[object, ...]:
    """Sort key: the collective in which the smallest group waits shows a culprit best."""
    return len(nodes[place[0]].instance.members), nodes[place[0]].instance.name, nodes[place[1]].instance.name


def _ahead_in_the_larger(
    nodes: Mapping[InstanceKey, Node],
    places: Mapping[int, list[tuple[InstanceKey, InstanceKey]]],
    steps: Steps,
) -> tuple[frozenset[int], tuple[int, ...]]:
    """The ranks that wait in a larger group, which most have not reached, and are missing in their own part of it.

    Returns:
        these ranks, and those that are out of step otherwise; both empty if these do not explain every conflict.
    """
    conflicts = steps.shared + steps.alike
    ahead: set[int] = set()
    for rank, of in places.items():
        for key, target in of:
            own, larger = nodes[key].instance, nodes[target].instance
            contains = set(larger.members) > set(own.members)
            if contains and 2 * len(larger.calls) <= len(larger.members) and not _may_be_swapped(own, larger):
                ahead.add(rank)
    if not conflicts or not all(ahead.issuperset(c.ours) or ahead.issuperset(c.theirs) for c in conflicts):
        return frozenset(), ()
    involved = {rank for conflict in conflicts for side in conflict for rank in side}
    return frozenset(ahead & involved), tuple(sorted(involved - ahead))


def _may_be_swapped(first: Instance, second: Instance) -> bool:
    """True if the groups of two collectives are used about equally often, as where their calls alternate."""
    fewer, more = sorted((first.sequence_id, second.sequence_id))
    return 2 * fewer > more


def swapped(case: Case, skipped: list[LeftOut]) -> tuple[tuple[int, ...], Instance, Instance]:
    """The ranks with the two collectives that they may have called in another order than the others."""
    ranks = {rank for found in skipped for rank in found.ranks}
    return tuple(sorted(ranks)), case.nodes[skipped[0].key].instance, skipped[0].taken


def name_in_cycle(case: Case, keys: list[InstanceKey], skipped: list[LeftOut]) -> None:
    """Add the ranks of a cycle that are out of step, each where others wait for it."""
    for found in skipped:
        node = case.nodes[found.key]
        details = step_sentences.out_of_step_text(found.ranks, node.instance, found.taken, found.or_else)
        _add_missing(case, node, found.ranks, details)
    for key in keys:
        missing = case.nodes[key].next
        own = next((f for f in skipped if any(rank in missing for rank in f.ranks)), skipped[0])
        case.cause_of.setdefault(key, case.cause_of[own.key])


def _add_missing(case: Case, node: Node, ranks: tuple[int, ...], details: str) -> None:
    summary, more = sentences.holding_text(
        case.evidence, node.instance, ranks, node.waiting, case.age(node), case.lasts, case.machines
    )
    finding = case.finding(node.instance, Category.MISSING_RANK, ranks, node.waiting, summary, [*more, details])
    finding.age = case.age(node)
    case.add(finding)
    case.cause_of[node.instance.key] = finding.key


def ranks_beyond(case: Case, node: Node, missing: list[int], *, unseen: bool) -> list[int]:
    """The ranks that wait in this node in a call too many; empty: not known.

    Args:
        missing: the ranks that they wait for. They ended well after fewer calls, or went on to a later call, or
            (``unseen``) seem to be in no call because their backend does not show when calls end.
    """
    if not unseen and not all(_has_passed(case, rank) for rank in missing):
        return []
    culprits = case.steps.culprits
    return [rank for rank in node.waiting if rank in culprits] if culprits.isdisjoint(missing) else []


def _has_passed(case: Case, rank: int) -> bool:
    """It ended well, or waits in another call."""
    info, last = case.evidence.ranks.get(rank), case.lasts.get(rank)
    return info is not None and (info.ending is Ending.CLEAN or (last is not None and last.in_call))


def name_beyond(case: Case, node: Node, ranks: list[int]) -> None:
    """Add ranks that wait in a call that the others do not make."""
    others = [rank for rank in node.instance.members if rank not in node.instance.calls]
    infos = [case.evidence.ranks.get(rank) for rank in others]
    ended = all(info is not None and info.ending is Ending.CLEAN for info in infos)
    if node.instance.p2p is None:
        category = Category.MISSING_RANK
        beside = not set(ranks).issuperset(node.waiting)
        summary = (
            step_sentences.out_of_step_beside_text(ranks, node.waiting, others, node.instance, case.machines)
            if beside
            else step_sentences.one_call_more_text(ranks, others, node.instance, case.machines, ended=ended)
        )
    else:
        category = Category.UNMATCHED_P2P
        summary = step_sentences.one_message_more_text(ranks[0], others[0], node.instance, None, case.machines)
    finding = case.finding(node.instance, category, ranks, node.waiting, summary)
    finding.age = case.age(node)
    finding.caused_by = case.same_culprits(ranks, out_of_step=True)
    case.add(finding)
    case.cause_of[node.instance.key] = finding.caused_by or finding.key


def name_in_stall(case: Case, keys: list[InstanceKey]) -> bool:
    """Add the ranks that are out of step where collectives that all members joined make no progress.

    Hosts run ahead of their devices: a rank that left out a call, or made one too many, may have joined all later ones,
    whose devices then wait for each other.

    Returns:
        False: nothing shows that a rank is out of step.
    """
    culprits = case.steps.culprits.intersection(rank for key in keys for rank in case.nodes[key].waiting)
    culprits = culprits or (frozenset() if case.lasting else case.steps.culprits)
    if not culprits:
        return False
    ahead, behind = list[Node](), list[tuple[Node, tuple[int, ...]]]()
    for key, node in case.nodes.items():
        if key in case.cause_of or node.behind is not None:
            continue
        absent = tuple(rank for rank in [*sorted(node.next), *node.idle] if rank in culprits)
        if absent and not culprits.issuperset(node.waiting):
            behind.append((node, absent))
        elif culprits.issuperset(node.waiting) and (node.next or node.idle):
            ahead.append(node)
    if behind:
        node, absent = min(behind, key=lambda found: (len(found[0].instance.members), found[0].instance.name))
        taken = case.nodes[keys[0]].instance
        _add_missing(case, node, absent, step_sentences.out_of_step_text(absent, node.instance, taken, ()))
    elif ahead:
        node = min(ahead, key=lambda node: (len(node.instance.members), node.instance.name))
        name_beyond(case, node, list(node.waiting))
    else:
        return False
    case.cause_of.update(dict.fromkeys(keys, case.cause_of[node.instance.key]))
    return True


def name_rivals(case: Case, keys: list[InstanceKey]) -> bool:
    """Add both ranks if one of the two is out of step, where collectives that all members joined make no progress.

    Returns:
        False: there are no such two ranks.
    """
    rivals = case.steps.rivals
    waiting = {rank for key in keys for rank in case.nodes[key].waiting}
    if waiting.isdisjoint(rivals):
        return False
    key = next((key for key in keys if set(rivals) <= set(case.nodes[key].instance.members)), keys[0])
    node = case.nodes[key]
    summary = step_sentences.rivals_text(rivals, node.instance, node.waiting, case.machines)
    finding = case.finding(node.instance, Category.DEADLOCK, rivals, sorted(waiting), summary)
    finding.age = case.age(node)
    case.add(finding)
    case.cause_of.update(dict.fromkeys(keys, finding.key))
    return True
