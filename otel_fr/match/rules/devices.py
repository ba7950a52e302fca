"""Ranks whose device does not complete, or has not begun, a call that others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from otel_fr.match.case import Case
from otel_fr.match.facts.instances import InstanceKey
from otel_fr.match.facts.ranks import is_halted
from otel_fr.match.finding import Category
from otel_fr.match.graph.device import StuckDevice, stuck_devices
from otel_fr.match.graph.nodes import Node
from otel_fr.match.rules.claims import Claim, Claims, Follows, Outcome, Stage, claim_of
from otel_fr.match.texts import device_texts
from otel_fr.match.texts import ranks as rank_texts
from otel_fr.match.texts.calls import waiting_text


def device(case: Case, claims: Claims) -> Iterator[Claim]:
    """Ranks with a call in flight that others completed."""
    spared = {*(rank for cause in claims.lasting for rank in cause.culprits), *case.deaths}
    found = stuck_devices(case, case.nodes, case.open_calls, spared, claims.cause_of)
    ranks = {stuck.rank for stuck in found}
    by_first: dict[InstanceKey, list[StuckDevice]] = {}
    for stuck in found:
        by_first.setdefault(stuck.first, []).append(stuck)
    explained = frozenset(claims.cause_of)
    for key, alike in by_first.items():
        behind = [k for stuck in alike for k in stuck.behind if k in case.nodes and k not in explained]
        waiting = sorted({r for k in behind for r in case.nodes[k].waiting} - ranks)
        instance, culprits = case.instances[key], [stuck.rank for stuck in alike]
        others = dict.fromkeys(id_ for stuck in alike for id_ in stuck.groups if id_ != instance.group.id)
        shared = [case.evidence.groups[id_] for id_ in others]
        known = [case.evidence.ranks.get(rank) for rank in culprits]
        halted = known[0].doing if known[0] is not None and all(map(is_halted, known)) else ""
        said = device_texts.device_texts(instance, culprits, alike[0].ahead, waiting, shared, case.machines, halted)
        yield Claim(
            category=Category.RANK_STUCK,
            culprits=tuple(sorted(culprits)),
            waiting=tuple(waiting),
            said=said,
            instance=instance,
            age=case.nodes[key].age if key in case.nodes else None,
            stuck_on=None if halted else "device",
            explains=tuple(behind),
        )


def cut_off_in_call(case: Case, _: Claims, stuck: Claim) -> Outcome:
    """A member's machine sends no more reports, or members' hosts do not reach each other: what the rank waits for did
    not come."""
    # The rank may have done its part of the call, and wait for data from a lost or unreachable host, while others have
    # all that they need.
    instance = stuck.instance
    if instance is None or stuck.stuck_on != "device":
        return None
    lost = case.with_lost([rank for rank in instance.members if rank in case.lost])
    hosts, details = rank_texts.unreached_texts(case.evidence, instance.members)
    if not lost and not hosts:
        return None
    text = rank_texts.silence_text(case, lost) if lost else hosts
    said = [f"{text}; {waiting_text(stuck.culprits, instance)}, which others completed", *details]
    waiting = tuple(sorted({*stuck.culprits, *stuck.waiting}))
    return replace(
        stuck,
        category=Category.STALLED_COLLECTIVE,
        culprits=tuple(lost),
        waiting=waiting,
        said=said,
        stuck_on=None,
        blames=tuple(lost),
    )


def device_not_completing(_: Case, __: Claims, stuck: Claim) -> Outcome:
    """The rank enqueued the call and does not complete it. The call needs every rank, or all others completed it long
    ago."""
    return stuck


def queue(case: Case, claims: Claims) -> list[Node]:
    """Calls in which devices wait, and which a member's device has not begun."""
    # In the order in which their own devices would begin them.
    nodes = [node for key, node in case.nodes.items() if key not in claims.cause_of and node.is_blocked_by_device]
    return sorted(
        nodes, key=lambda node: (min(node.instance.call(r).record for r in node.not_begun), node.instance.name)
    )


def device_named_already(_: Case, claims: Claims, node: Node) -> Outcome:
    """The member is already named: it is a consequence."""
    causes = (cause.key for rank in node.not_begun for cause in claims.lasting if rank in cause.culprits)
    named = next(causes, None)
    return None if named is None else Follows(named, (node.instance.key,))


def device_not_begun(case: Case, _: Claims, node: Node) -> Outcome:
    """The member has enqueued it, its device has begun no call that others wait in, and nothing moves."""
    waiting = [rank for rank in node.waiting if rank not in node.not_begun]
    said = [device_texts.not_begun_text(node.instance, node.not_begun, waiting, case.machines)]
    claim = claim_of(node, Category.RANK_STUCK, node.not_begun, said)
    return replace(claim, waiting=tuple(waiting), stuck_on="device")


STAGES = (
    Stage(device, (cut_off_in_call, device_not_completing)),
    Stage(queue, (device_named_already, device_not_begun)),
)
