"""Ranks without evidence, and whether they may be the ones for which others wait.

They may themselves wait for a culprit with which they share a group. Or other evidence may not fit a fault that began
at them. If a rank without evidence were the only one at fault, all other ranks would do what their program says, and
each of them would wait: its first call in flight would lack a rank, or wait behind others.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from otel_fr.match.case import Case
from otel_fr.match.facts.calls import is_connecting, is_waiting
from otel_fr.match.finding import Category
from otel_fr.match.graph.nodes import Front, Node, fronts
from otel_fr.match.model import Call, CallState, Evidence
from otel_fr.match.rules.blocked import STAGE as BLOCKED
from otel_fr.match.rules.blocked import Blocked, in_order
from otel_fr.match.rules.claims import Claim, Claims, Follows, Outcome, SetAside, Stage
from otel_fr.match.rules.joined import front_claim, late_claim
from otel_fr.match.texts import ranks as rank_texts
from otel_fr.match.texts import sentences


@dataclass(frozen=True, slots=True)
class Silent:
    """A call that waits for ranks without evidence.

    Attributes:
        near: the causes that were named earlier, each with the ranks that share a group with its culprits.
        elsewhere: the evidence does not fit a fault that began at the only rank without evidence.
    """

    node: Node
    near: list[tuple[str, set[int]]]
    elsewhere: bool


def _open(case: Case, claims: Claims) -> list[Node]:
    return [n for k, n in case.nodes.items() if k not in claims.cause_of and n.culprits and not n.behind]


def silent(case: Case, claims: Claims) -> list[Silent]:
    """Calls that wait for ranks without evidence."""
    nodes = [node for node in _open(case, claims) if node.culprits == node.silent]
    near = [(one.key, _near(case.evidence, one.culprits)) for one in claims.lasting] if nodes else []
    alone = len(case.unheard) == 1 and any(_never_heard(case, node) for node in nodes)
    elsewhere = alone and _may_have_begun_elsewhere(case)
    return [Silent(node, near, elsewhere and _never_heard(case, node)) for node in nodes]


def _near(evidence: Evidence, culprits: Iterable[int]) -> set[int]:
    """Return the ranks that share a group with a culprit: they may wait for it."""
    wanted = set(culprits)
    return {rank for group in evidence.groups.values() if not wanted.isdisjoint(group.ranks) for rank in group.ranks}


def _may_have_begun_elsewhere(case: Case) -> bool:
    """True if the evidence does not fit a fault that began at the ranks without evidence alone."""
    if any(calls.late for calls in case.open_calls.values()):
        return True  # a device that may be blocked
    if case.steps.shared or case.steps.culprits.difference(case.unheard):
        return True  # a rank that left out a call
    heads: dict[int, Call] = {}  # each rank's first call in flight: it waits for no other call of the rank
    for call in case.evidence.calls:
        if call.state is not CallState.COMPLETED and is_waiting(call, case.evidence.window):
            known = heads.setdefault(call.rank, call)
            if call.record < known.record:
                heads[call.rank] = call
    return any(_is_unexplained(node, heads) for node in case.nodes.values()) or any(
        _is_vague(call, case.unheard) for call in heads.values()
    )


def _is_unexplained(node: Node, heads: Mapping[int, Call]) -> bool:
    """True if all members joined the call, and nothing before it blocks any of them.

    Calls of a batch do not count: they end together, so one of them may wait for what another one lacks.
    """
    instance = node.instance
    if node.mismatch is not None or not set(instance.calls).issuperset(instance.members):
        return False
    return all(instance.call(rank) is heads.get(rank) and instance.call(rank).batch is None for rank in node.waiting)


def _is_vague(head: Call, unheard: Container[int]) -> bool:
    """True if the call is a message whose other end the peer's evidence does not show: it may have completed."""
    return head.signature.any_source and head.signature.peer is not None and head.signature.peer not in unheard


def _never_heard(case: Case, node: Node) -> bool:
    return case.unheard.issuperset(node.culprits)


def joined_late(case: Case, _: Claims, root: Silent) -> Outcome:
    """Some ranks joined after others had timed out: the late ranks are named."""
    return late_claim(case, root.node) if _never_heard(case, root.node) else None


def near_a_culprit(_: Case, __: Claims, root: Silent) -> Outcome:
    """They share a group with a culprit, and may wait for it."""
    cause = next((cause for cause, ranks in root.near if ranks.issuperset(root.node.silent)), None)
    return None if cause is None else Follows(cause, (root.node.instance.key,))


def begun_elsewhere(case: Case, _: Claims, root: Silent) -> Outcome:
    """The fault may have begun at another rank: its device may be blocked, it may have left out a call, or its wait
    has no explanation."""
    return SetAside((root.node.instance.key,)) if root.elsewhere else None


def _left(case: Case, claims: Claims) -> list[Node]:
    return [node for node in _open(case, claims) if node.instance.key not in claims.set_aside]


def _is_untold(case: Case, node: Node) -> bool:
    """True if the call waits for several ranks without evidence: these may wait for one another."""
    return len(case.unheard) > 1 and _never_heard(case, node)


def silent_blocked(case: Case, claims: Claims) -> Iterator[Blocked]:
    """The other such calls, and what the stage `blocked` left open."""
    return in_order(case, claims, [node for node in _left(case, claims) if not _is_untold(case, node)])


def several_silent(case: Case, claims: Claims) -> list[Front]:
    """Calls that wait for one of several ranks without evidence, if there is no cause."""
    nodes = {node.instance.key: node for node in _left(case, claims) if _is_untold(case, node)}
    return [] if claims.lasting else fronts(nodes)


def several_unheard(case: Case, _: Claims, front: Front) -> Claim:
    """These ranks may wait for one another: nobody is named."""
    node = case.nodes[front[0]]
    said = [sentences.untold_text(node.instance, node.waiting, case.unheard)]
    said += rank_texts.raised_texts(case.evidence, node.waiting)
    return front_claim(case, front, Category.MISSING_RANK, (), node.waiting, said)


def unrecorded(case: Case, claims: Claims) -> list[Front]:
    """Calls that wait for ranks whose recording has gaps, if there is no cause."""
    found = {
        key: node
        for key, node in case.nodes.items()
        if node.unrecorded
        and key not in claims.cause_of
        and not (node.culprits or node.next or node.undecided)
        # If all have joined, they may take minutes.
        and not is_connecting([node.instance.call(rank) for rank in node.instance.calls])
    }
    return [] if claims.lasting else fronts(found)


def not_recorded(case: Case, _: Claims, front: Front) -> Claim:
    """It is not known whether they joined: nobody is named."""
    node = case.nodes[front[0]]
    said = [sentences.unrecorded_text(case, node.instance, node.waiting, node.unrecorded)]
    return front_claim(case, front, Category.MISSING_RANK, (), node.waiting, said)


STAGES = (
    Stage(silent, (joined_late, near_a_culprit, begun_elsewhere)),
    Stage(silent_blocked, BLOCKED.rules),
    Stage(several_silent, (several_unheard,)),
)

UNRECORDED = Stage(unrecorded, (not_recorded,))
