"""Ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from otel_fr.match.case import Case
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.finding import Category
from otel_fr.match.graph.misdirected import find_misdirected
from otel_fr.match.graph.nodes import Node, cycles
from otel_fr.match.graph.steps import Steps
from otel_fr.match.model import MessagePattern
from otel_fr.match.rules import blocked
from otel_fr.match.rules.claims import Claim, Claims, Outcome, Stage
from otel_fr.match.texts import device_texts, sentences


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Ranks of a cycle that are out of step, and a collective in which others wait for them.

    Attributes:
        instance: the collective that they did not join.
        taken: the collective in which they wait instead.
        swapped: the two collectives may as well be in the wrong order: the ranks are behind by one call, and both
            groups are used about equally often.
        or_else: ranks that are out of step if these are not; (): the evidence allows no such doubt.
    """

    ranks: tuple[int, ...]
    instance: Instance
    taken: Instance
    swapped: bool
    or_else: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cycle:
    """Instances whose ranks wait for each other.

    Attributes:
        steps: (rank, where it waits, the member that it waits for), starting with the smallest rank.
        skipped: ranks that left out a call, or made one too many.
    """

    keys: list[InstanceKey]
    steps: list[tuple[int, Instance, int]]
    skipped: list[LeftOut]


def cycle(case: Case, claims: Claims) -> Iterator[Cycle]:
    """Ranks that wait for each other: a strongly connected part of the wait-for graph."""
    for keys in cycles(case.nodes):
        if any(key in claims.cause_of or case.nodes[key].dead for key in keys):
            continue
        yield Cycle(keys, _walk(case, keys), _find_left_out(case.nodes, keys, case.steps))


def _find_left_out(nodes: Mapping[InstanceKey, Node], cycle: list[InstanceKey], steps: Steps) -> list[LeftOut]:
    """Return the ranks of a cycle that left out calls or made calls too many; empty: none are known."""
    inside = set(cycle)
    places: dict[int, list[tuple[InstanceKey, InstanceKey]]] = {}
    for key in cycle:
        for rank, targets in nodes[key].next.items():
            if rank in nodes[key].instance.calls:
                continue  # The rank has joined, but its device has not begun the call.
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
            nodes[key].instance,
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
    """Return the ranks that a group waits for, while they wait in a larger group's call that most have not reached.

    Returns:
        these ranks, and the ranks that are out of step otherwise; both empty if these do not explain every conflict.
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


def _walk(case: Case, keys: list[InstanceKey]) -> list[tuple[int, Instance, int]]:
    """Return `Cycle.steps`.

    Passes through an instance that only waits behind another one of the cycle: its rank waits in the other one.
    """
    inside = set(keys)
    ahead_of = {key: _ahead(case, key, inside) for key in keys}
    key = min((k for k in keys if ahead_of[k]), key=lambda k: case.nodes[k].waiting)
    path: list[InstanceKey] = []
    blockers: dict[InstanceKey, int] = {}
    while key not in path:
        path.append(key)
        node, ahead = case.nodes[key], ahead_of[key]
        if ahead:
            blockers[key] = ahead[0]
        key = next(target for target in (node.next[ahead[0]] if ahead else node.targets) if target in inside)
    cycle = [k for k in path[path.index(key) :] if k in blockers]
    steps: list[tuple[int, Instance, int]] = []
    for before, key in zip([cycle[-1], *cycle], cycle, strict=False):
        node, rank = case.nodes[key], blockers[before]
        steps.append((rank if rank in node.waiting else min(node.waiting), node.instance, blockers[key]))
    first = min(range(len(steps)), key=lambda i: steps[i][0])
    return steps[first:] + steps[:first]


def _ahead(case: Case, key: InstanceKey, inside: set[InstanceKey]) -> list[int]:
    return [rank for rank, targets in sorted(case.nodes[key].next.items()) if inside & set(targets)]


def _claim(
    case: Case,
    cycle: Cycle,
    category: Category,
    culprits: Iterable[int],
    instance: Instance,
    said: Sequence[str],
) -> Claim:
    return Claim(
        category=category,
        culprits=tuple(sorted(culprits)),
        waiting=tuple(sorted({rank for key in cycle.keys for rank in case.nodes[key].waiting})),
        said=[*said, *device_texts.sync_texts(case, (rank for rank, _, _ in cycle.steps))],
        instance=instance,
        explains=tuple(cycle.keys),
    )


def creation_left_out_in_cycle(case: Case, _: Claims, cycle: Cycle) -> Outcome:
    """The cycle has creations of process groups, and no more ranks are missing from them than wait in them. All ranks
    must call each of them: the missing ones left them out, unless their positions show that others are out of step."""
    created = [key for key in cycle.keys if key[1] == "group"]
    inside = set(cycle.keys)
    absent = sorted({rank for key in created for rank in _ahead(case, key, inside)})
    waiting = tuple(sorted({rank for key in created for rank in case.nodes[key].waiting}))
    is_other = any(not found.or_else for found in cycle.skipped)
    if is_other or not absent or len(absent) > len(waiting) or not set(absent).isdisjoint(waiting):
        return None
    node = case.nodes[created[0]]
    taken = next(key for rank in absent for key in node.next.get(rank, ()) if key in inside)
    text = sentences.out_of_step_text(tuple(absent), node.instance, case.nodes[taken].instance, waiting)
    return blocked.absent_claim(case, node, absent, text, cycle.keys)


def out_of_step_in_cycle(case: Case, _: Claims, cycle: Cycle) -> Outcome:
    """The positions of the ranks in all groups show that some left out a call, or made one too many."""
    if not cycle.skipped or all(found.swapped for found in cycle.skipped):
        return None
    explains = {id(found): [found.instance.key] for found in cycle.skipped}
    for key in set(cycle.keys).difference(found.instance.key for found in cycle.skipped):
        missing = case.nodes[key].next
        own = next((f for f in cycle.skipped if any(rank in missing for rank in f.ranks)), cycle.skipped[0])
        explains[id(own)].append(key)
    return tuple(
        blocked.absent_claim(
            case,
            case.nodes[found.instance.key],
            found.ranks,
            sentences.out_of_step_text(found.ranks, found.instance, found.taken, found.or_else),
            explains[id(found)],
        )
        for found in cycle.skipped
    )


def misdirected_in_cycle(case: Case, _: Claims, cycle: Cycle) -> Outcome:
    """A send and a receive of the cycle would match but for the peer or the tag of one of them, and no other rank is
    out of step. Or a message of the cycle, unlike all before it, would match one that waits for the cycle and is like
    several before."""
    if cycle.skipped:
        return None
    astray = find_misdirected(case.instances, cycle.keys)
    if astray is None:  # the rank that waits for the message need not be in the cycle
        beside = [source for key in cycle.keys for source in case.sources.get(key, ())]
        astray = find_misdirected(case.instances, [*cycle.keys, *beside])
        if astray is None or not astray.breaks_pattern or astray.astray.key not in cycle.keys:
            return None
    if case.steps.culprits and case.steps.culprits.isdisjoint(astray.culprits) and not astray.breaks_pattern:
        return None
    said = [sentences.misdirected_text(astray, case.machines)]
    return _claim(case, cycle, Category.UNMATCHED_P2P, astray.culprits, astray.astray, said)


def _message(case: Case, cycle: Cycle) -> tuple[int, Instance, int] | None:
    """Return the only step that waits in a message, if no rank is known to be out of step; else None.

    Of several such steps, it is the one in which the awaited rank had made the other half in each step before.
    """
    found = [step for step in cycle.steps if step[1].p2p]
    if len(found) > 1:
        found = [step for step in found if _left_out_half(case, step)]
    return found[0] if len(found) == 1 and not cycle.skipped else None


def _left_out_half(case: Case, step: tuple[int, Instance, int]) -> bool:
    return _has_pattern(case, step[2], step[1])


def _has_pattern(case: Case, rank: int, message: Instance, step: str = "") -> bool:
    """True if the rank kept a `MessagePattern` of such messages with this ``step``."""
    info = case.evidence.ranks.get(rank)
    if info is None or message.p2p is None:
        return False
    return MessagePattern(message.group.id, *message.p2p[:3], step) in info.patterns


def message_too_many_in_cycle(case: Case, _: Claims, cycle: Cycle) -> Outcome:
    """The cycle has one message, and its caller made one more than in each step before, or than its position in other
    groups allows."""
    step = _message(case, cycle)
    if step is None:
        return None
    caller, message, blocker = step
    after = cycle.steps[(cycle.steps.index(step) + 1) % len(cycle.steps)][1]
    out = (case.steps.culprits or frozenset(case.steps.rivals)) & {caller, blocker}
    if out == {caller}:
        text = sentences.one_message_more_text(caller, blocker, message, after, case.machines)
    elif not out and after.stream == "collective" and _has_pattern(case, blocker, message, after.group.id):
        text = sentences.one_more_text(caller, blocker, message, after, case.machines)
    else:
        return None
    return _claim(case, cycle, Category.UNMATCHED_P2P, (caller,), message, [text])


def message_missing_in_cycle(case: Case, _: Claims, cycle: Cycle) -> Outcome:
    """The cycle has one message, or one that its rank had made in each step before: the rank that did not make its
    other half is named."""
    step = _message(case, cycle)
    if step is None:
        return None
    caller, message, blocker = step
    both = tuple(sorted((caller, blocker)))
    said = sentences.unmatched_texts(case, message, blocker)
    culprits = both if case.steps.rivals == both and not _left_out_half(case, step) else (blocker,)
    return _claim(case, cycle, Category.UNMATCHED_P2P, culprits, message, said)


def behind_message(case: Case, claims: Claims, keys: list[InstanceKey]) -> Outcome:
    """Find half a message in which one rank waits, while the message's other rank waits in these collectives.

    Source of the rule: a device stays in the half while its host enqueues the collectives. A receive may be posted long
    before its message is due. A later message with both halves that does not complete shows that the device is in it.

    Args:
        keys: collectives that all joined; the first blocks the others.
    """
    own = case.nodes[keys[0]].instance
    for caller in sorted(case.messages.keys() & own.calls.keys()):
        for key in case.messages[caller]:
            node, record = case.nodes[key], case.nodes[key].instance.call(caller).record
            other = next((rank for rank, ahead in node.next.items() if keys[0] in ahead), None)
            if other is None or key in claims.cause_of or len(node.instance.calls) != 1:
                continue
            if record < own.call(caller).record and _holds_whole_message(case, caller, record):
                cycle = Cycle([key, *keys], [(caller, node.instance, other), (other, own, caller)], [])
                return message_too_many_in_cycle(case, claims, cycle) or message_missing_in_cycle(case, claims, cycle)
    return None


def _holds_whole_message(case: Case, rank: int, record: int) -> bool:
    """True if a message with both halves does not complete, and the rank called its half after this record."""
    messages = (case.nodes[key].instance for key in case.messages[rank])
    return any(len(one.calls) == 2 and one.call(rank).record > record for one in messages)


def deadlock(case: Case, _: Claims, cycle: Cycle) -> Outcome:
    """Ranks took calls in different orders. Those that are out of step with the others are named, else all."""
    inside = set(cycle.keys)
    blockers = {rank for key in cycle.keys for rank in _ahead(case, key, inside)}
    out, minority = blockers & case.steps.culprits, None
    if cycle.skipped:
        out = {rank for found in cycle.skipped for rank in found.ranks}
        minority = tuple(sorted(out)), cycle.skipped[0].instance, cycle.skipped[0].taken
    said = [sentences.deadlock_text(cycle.steps, minority, case.machines, tuple(sorted(out)))]
    return _claim(case, cycle, Category.DEADLOCK, out or blockers, cycle.steps[0][1], said)


STAGE = Stage(
    cycle,
    (
        creation_left_out_in_cycle,
        out_of_step_in_cycle,
        misdirected_in_cycle,
        message_too_many_in_cycle,
        message_missing_in_cycle,
        deadlock,
    ),
)
