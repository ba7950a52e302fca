"""Collectives that all members joined and that do not complete."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from otel_fr.match.case import Case
from otel_fr.match.facts.aftermath import was_refused
from otel_fr.match.facts.calls import gave_up, is_connecting, is_stalled, stragglers
from otel_fr.match.facts.mismatch import judge
from otel_fr.match.facts.ranks import is_halted
from otel_fr.match.finding import Category
from otel_fr.match.graph.nodes import Front, Node, fronts, inverted, waited
from otel_fr.match.model import Call, CallState, Ending
from otel_fr.match.rules import blocked, cycles
from otel_fr.match.rules.claims import Claim, Claims, Follows, Outcome, Stage, claim_of
from otel_fr.match.texts import sentences


def joined(case: Case, claims: Claims) -> list[Node]:
    """Collectives that all members joined."""
    return [
        node
        for key, node in case.nodes.items()
        if key not in claims.cause_of
        and not node.behind
        and node.instance.members
        and set(node.instance.members) <= set(node.instance.calls)
    ]


def _calls(node: Node) -> list[Call]:
    return [node.instance.call(rank) for rank in node.instance.members]


def late_claim(case: Case, node: Node) -> Claim | None:
    """Return the claim about ranks that joined after the others had given up, if there are any."""
    late = stragglers([node.instance.call(rank) for rank in sorted(node.instance.calls)], case.aborted)
    if not late:
        return None
    culprits = {call.rank for call in late}
    said = [sentences.straggler_text(node.instance, late, case.machines)]
    waiting = tuple(rank for rank in node.waiting if rank not in culprits)
    return dataclasses.replace(claim_of(node, Category.STRAGGLER, culprits, said), waiting=waiting)


def joined_after_timeout(case: Case, _: Claims, node: Node) -> Claim | None:
    """A rank joined after others had timed out: the late rank is named."""
    return late_claim(case, node)


def stalled(case: Case, claims: Claims) -> list[Front]:
    """Sets of collectives that all members joined and whose calls are blocked; the first blocks the others."""
    nodes = (node for node in joined(case, claims) if not is_connecting(_calls(node)))
    return fronts({n.instance.key: n for n in nodes if is_stalled(_calls(n), case.evidence, case.aborted)})


def out_of_step_in_stall(case: Case, claims: Claims, front: Front) -> Outcome:
    """The positions of the ranks in all groups show that some left out a call, or made one too many, and then joined
    the later ones."""
    # If hosts run ahead of their devices, the devices of all ranks wait for each other.
    keys = [front[0], *front[1]]
    culprits = case.steps.culprits.intersection(rank for key in keys for rank in case.nodes[key].waiting)
    culprits = culprits or (frozenset() if claims.lasting else case.steps.culprits)
    ahead, behind = list[Node](), list[tuple[Node, tuple[int, ...]]]()
    for key, node in case.nodes.items() if culprits else ():
        if key in claims.cause_of or node.behind is not None:
            continue
        absent = tuple(rank for rank in [*sorted(node.next), *node.idle] if rank in culprits)
        if absent and not culprits.issuperset(node.waiting):
            behind.append((node, absent))
        elif culprits.issuperset(node.waiting) and (node.next or node.idle):
            ahead.append(node)
    if behind:
        node, absent = min(behind, key=lambda found: (len(found[0].instance.members), found[0].instance.name))
        taken = case.nodes[front[0]].instance
        detail = sentences.out_of_step_text(absent, node.instance, taken, ())
        return blocked.absent_claim(case, node, absent, detail, (node.instance.key, *keys))
    if ahead:
        node = min(ahead, key=lambda node: (len(node.instance.members), node.instance.name))
        claim = blocked.beyond_claim(case, claims, node, node.waiting)
        return dataclasses.replace(claim, explains=(*claim.explains, *keys))
    return None


def refused(case: Case, _: Claims, front: Front) -> Outcome:
    """The backend refused wrong calls of all members at once: nothing was sent, and programs may catch it."""
    return () if was_refused(case.evidence, judge(case.nodes[front[0]].instance)) else None


def stopped_rank(case: Case, _: Claims, front: Front) -> Outcome:
    """Some members' processes are stopped by a signal, a debugger or a cgroup's freezer: the others wait."""
    node = case.nodes[front[0]]
    culprits = tuple(rank for rank in node.instance.members if is_halted(case.evidence.ranks.get(rank)))
    if not 0 < len(culprits) < len(node.instance.members):
        return None
    waiting = tuple(rank for rank in node.waiting if rank not in culprits)
    said = sentences.stopped_texts(case, node.instance, culprits, waiting)
    return front_claim(case, front, Category.RANK_STUCK, culprits, waiting, said)


def opposite_orders(case: Case, _: Claims, front: Front) -> Outcome:
    """Two ranks enqueued two of them in opposite orders."""
    node = case.nodes[front[0]]
    turned = inverted([case.nodes[key] for key in (front[0], *front[1])])
    if turned is None:
        return None
    out = tuple(rank for rank in turned[2:] if rank in case.steps.culprits)
    said = [sentences.inverted_text(*turned, case.machines, out if len(out) == 1 else ())]
    said += sentences.joined_texts(case, node, _lost(case, node))
    return front_claim(case, front, Category.DEADLOCK, out or turned[2:], node.waiting, said)


def held_by_batch(case: Case, claims: Claims, front: Front) -> Outcome:
    """It is a message, and one of its ranks also waits in a message that another rule explains: the messages of a
    batch end together."""
    node = case.nodes[front[0]]
    for rank in node.waiting if node.instance.p2p else ():
        for key in case.messages[rank]:
            if key != front[0] and rank in case.nodes[key].waiting:
                cause = claims.cause_from(case, key)
                if cause is not None:
                    return Follows(cause, (front[0], *front[1]))
    return None


def message_missing_in_stall(case: Case, claims: Claims, front: Front) -> Outcome:
    """A member waits in half a message that it called before, and the message's other rank waits here. A later message
    of the member does not complete either."""
    return cycles.behind_message(case, claims, [front[0], *front[1]])


def lost_host(case: Case, _: Claims, front: Front) -> Outcome:
    """A member's machine sends no more reports."""
    node = case.nodes[front[0]]
    culprits = _lost(case, node)
    if not culprits:
        return None
    said = sentences.joined_texts(case, node, culprits)
    return front_claim(case, front, Category.STALLED_COLLECTIVE, culprits, node.waiting, said)


def all_joined(case: Case, claims: Claims, front: Front) -> Outcome:
    """Nothing shows why it does not complete: nobody is named."""
    node = case.nodes[front[0]]
    said = sentences.joined_texts(case, node)
    claim = front_claim(case, front, Category.STALLED_COLLECTIVE, (), node.waiting, said)
    return dataclasses.replace(claim, caused_by=_broken_by(case, claims, _calls(node)))


def _lost(case: Case, node: Node) -> Sequence[int]:
    return case.with_lost([rank for rank in node.instance.members if rank in case.lost])


def _broken_by(case: Case, claims: Claims, calls: list[Call]) -> str | None:
    """Return the key of the fault that ended a member of these calls: its end broke the others' connections."""
    if not any(call.state is CallState.FAILED and not gave_up(call) for call in calls):
        return None
    bad = (Ending.KILLED, Ending.RAISED, Ending.GONE)
    ended = {call.rank for call in calls if case.evidence.ending_of(call.rank) in bad}
    found = (cause for cause in claims.lasting if ended.intersection(cause.culprits + cause.waiting))
    return next((cause.key for cause in found), None)


def front_claim(
    case: Case,
    front: Front,
    category: Category,
    culprits: Sequence[int],
    waiting: tuple[int, ...],
    said: Sequence[str],
) -> Claim:
    """Return the claim about a set of blocked instances. The fault shows in the first instance of the front."""
    claim, node = claim_of(case.nodes[front[0]], category, culprits, said), case.nodes[front[0]]
    age = waited(node.instance, waiting)
    return dataclasses.replace(claim, waiting=waiting, age=age, explains=(front[0], *front[1]))


STAGES = (
    Stage(joined, (joined_after_timeout,)),
    Stage(
        stalled,
        (
            refused,
            held_by_batch,
            stopped_rank,
            out_of_step_in_stall,
            opposite_orders,
            message_missing_in_stall,
            lost_host,
            all_joined,
        ),
    ),
)
