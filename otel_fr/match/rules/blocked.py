"""Ranks that others wait for and that wait for nobody: dead, absent, behind, or owing half of a message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from otel_fr.match.case import Case
from otel_fr.match.facts.endings import ended_with
from otel_fr.match.facts.instances import InstanceKey
from otel_fr.match.facts.ranks import by_user, is_excused, is_halted, was_stopped
from otel_fr.match.finding import Category
from otel_fr.match.graph.misdirected import MisdirectedMessage, find_misdirected
from otel_fr.match.graph.nodes import Node, waited
from otel_fr.match.model import Ending
from otel_fr.match.rules.claims import Claim, Claims, Follows, Outcome, Stage, beside, claim_of
from otel_fr.match.rules.standing import (
    are_blocked,
    callers_of_extra,
    died_in_mismatch,
    has_destroyed,
    is_in_barrier,
    is_in_no_call,
    last_of_all,
    may_wait,
    not_done,
    others,
)
from otel_fr.match.texts import device_texts, sentences
from otel_fr.match.texts import ranks as rank_texts


@dataclass(frozen=True, slots=True)
class Blocked:
    """An instance that waits for ranks.

    Attributes:
        culprits: the awaited ranks that no claim blames yet.
        known: the awaited ranks that a claim already blames.
        unseen: the awaited ranks' backend does not show when calls end, so they may wait as well.
        astray: a message in this instance that names the wrong rank or tag.
    """

    node: Node
    culprits: tuple[int, ...]
    known: tuple[int, ...]
    unseen: bool
    astray: MisdirectedMessage | None

    @property
    def key(self) -> InstanceKey:
        return self.node.instance.key


def in_order(case: Case, claims: Claims, nodes: Sequence[Node]) -> Iterator[Blocked]:
    """Yield the nodes, the most telling ones first.

    Nodes that wait for no other node show their culprit best. Of these, the first is the one that its callers reached
    after the fewest calls, since ranks run alike.
    """
    unseen = {n.instance.key: not n.dead and all(may_wait(case, rank) for rank in n.culprits) for n in nodes}
    reached = {n.instance.key: max(n.instance.call(rank).record for rank in n.waiting) for n in nodes}
    first: dict[int, int] = {}
    for node in nodes:
        for rank in () if node.targets else node.culprits:
            first[rank] = min(reached[node.instance.key], first.get(rank, reached[node.instance.key]))
    ordered = sorted(
        nodes,
        key=lambda n: (
            unseen[n.instance.key],
            bool(n.targets),
            any(first.get(rank, 0) < reached[n.instance.key] for rank in n.culprits),
            len(n.instance.members),
            n.instance.name,
        ),
    )
    for node in ordered:
        new = tuple(rank for rank in node.culprits if rank not in claims.blamed)
        known = tuple(rank for rank in node.culprits if rank in claims.blamed)
        yield Blocked(node, new, known, unseen[node.instance.key], _astray(case, claims, node, new))


def blocked(case: Case, claims: Claims) -> Iterator[Blocked]:
    """Calls that wait for ranks that are dead, or that wait in no call."""
    nodes = (node for key, node in case.nodes.items() if key not in claims.cause_of and not node.behind)
    return in_order(case, claims, [node for node in nodes if node.dead or node.idle])


def named_already(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """The ranks that the call waits for are already named: it is a consequence."""
    is_known = not root.culprits or (root.known and all(may_wait(case, rank) for rank in root.culprits))
    if is_known and not _absent_beside(case, claims, root):
        return Follows(claims.blamed[root.known[0]], (root.key,))
    return None


def may_still_join(_: Case, __: Claims, root: Blocked) -> Outcome:
    """A member that has not joined has moved within the window: no verdict yet."""
    return () if root.node.undecided and not root.node.dead else None


def call_too_many(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """The absent ranks ended well, or destroyed the group, or continued. The waiting ranks are out of step, or most
    members had destroyed the group: they made one call too many."""
    node = root.node
    extra = [] if node.dead else callers_of_extra(case, node, root.culprits, unseen=root.unseen)
    if not extra or root.astray is not None:
        return None
    if extra[0] in claims.blamed:
        return Follows(claims.blamed[extra[0]], (root.key,))
    return beyond_claim(case, claims, node, extra)


def beyond_claim(case: Case, claims: Claims, node: Node, ranks: Sequence[int]) -> Claim:
    """Return the claim that ranks wait in a call that the others do not make."""
    absent = [rank for rank in node.instance.members if rank not in node.instance.calls]
    absent = [rank for rank in absent if rank not in case.unheard] or absent
    ended = all(case.evidence.ending_of(rank) is Ending.CLEAN for rank in absent)
    left = all(has_destroyed(case, node, rank) for rank in absent)
    if node.instance.p2p is not None:
        text = sentences.one_message_more_text(ranks[0], absent[0], node.instance, None, case.machines)
    elif set(ranks).issuperset(node.waiting):
        text = sentences.one_call_more_text(ranks, absent, node.instance, case.machines, ended=ended, left=left)
    else:
        text = sentences.out_of_step_beside_text(ranks, node.waiting, absent, node.instance, case.machines)
    category = Category.MISSING_RANK if node.instance.p2p is None else Category.UNMATCHED_P2P
    caused_by = claims.same_culprits(case, ranks, out_of_step=True)
    return replace(claim_of(node, category, ranks, [text]), caused_by=caused_by, blames=tuple(ranks))


def death_elsewhere(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """A rank has died, and the absent ranks may wait unseen: `rank_ended` names the dead rank."""
    return () if root.unseen and case.deaths and not claims.lasting else None


def unseen_stall(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """The absent ranks probably wait in an earlier call, because their backend does not show when calls end: nobody is
    named."""
    if not root.unseen or case.steps.culprits:
        return None
    node, culprits = root.node, others(case, root.culprits)
    last = last_of_all(case, culprits)
    if last is not None and not set(last.members).isdisjoint(node.waiting):
        return None  # The waiting ranks joined it after their wait, so the others left out what they wait in.
    if last is None and not 2 * len(culprits) > len(node.instance.members) > 2:
        return None
    return Claim(
        category=Category.STALLED_COLLECTIVE,
        waiting=node.waiting if last is None else last.members,
        said=[
            sentences.many_unseen_text(node.instance, node.waiting, node.culprits)
            if last is None
            else sentences.unseen_stall_text(last, node.instance, node.waiting)
        ],
        instance=node.instance if last is None else last,
        age=node.age,
        caused_by=claims.first_cause,
        explains=(root.key,),
        blames=tuple(culprits) if last is None else last.members,
    )


def misdirected_message(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """The rank that should have the other half ended well, and a message to or from another rank would fit."""
    if root.astray is None or _category(case, root.node, _named(case, root)) is not Category.UNMATCHED_P2P:
        return None
    said = [sentences.misdirected_text(root.astray, case.machines)]
    return _claim(case, claims, root, Category.UNMATCHED_P2P, root.astray.culprits, said)


def dead_rank(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """A member ended by its own fault and blocks the call. Ranks that the same signal ended at the same time are named
    with it; members that run no Python, or had been away for the window before that, separately."""
    node, own, away = root.node, _named(case, root), _absent_beside(case, claims, root)
    if not node.dead or not own:
        return away or None
    # One fault may end ranks of many groups, for example all ranks of a machine.
    culprits = sorted({*own, *ended_with(case.evidence, own, case.deaths.difference(claims.blamed))})
    said = sentences.holding_texts(case, node, culprits)
    # Absent ranks remain absent even if a rank died while it waited for them.
    absent = sorted({*node.idle, *node.undecided, *node.next} - set(node.instance.calls))
    if absent and set(own) <= set(node.instance.calls):
        said.append(sentences.absent_text(case, node.instance, absent))
    dead = _claim(case, claims, root, Category.RANK_DEAD, own, said)
    return *away, replace(dead, culprits=tuple(culprits), blames=tuple(culprits))


def _absent_beside(case: Case, claims: Claims, root: Blocked) -> tuple[Claim, ...]:
    """Return a claim about ranks for which others waited before a rank died: an earlier fault of their own."""
    node = root.node
    if not node.dead or node.instance.p2p is not None:
        return ()
    ends = (case.evidence.ranks[rank].ended_for for rank in node.dead)
    ended = min((seconds for seconds in ends if seconds is not None), default=math.inf)
    waited_there = waited(node.instance, node.dead) or 0.0
    idle = (rank for rank in node.idle if rank not in claims.blamed)
    away = [rank for rank in idle if _was_away(case, node, rank, ended, waited_there)]
    if not away:
        return ()
    claim = _claim(case, claims, root, _category(case, node, away), away, sentences.holding_texts(case, node, away))
    return (replace(claim, name=beside(claim.key)),)  # the dead rank may have been named first


def _was_away(case: Case, node: Node, rank: int, ended: float, waited_there: float) -> bool:
    """True if the rank does not run Python, or had been away for the window before a member died.

    After the death, it may wait for the dead rank, at a store for example, or its launcher may end it.

    Args:
        ended: seconds since the death.
        waited_there: seconds for which the dead rank had waited in this call.
    """
    info, window = case.evidence.ranks[rank], case.evidence.window
    idle = info.idle or 0.0
    if info.has_left(node.instance.group.id):
        return False
    if was_stopped(info) and not by_user(info):
        return window <= waited_there <= idle
    if info.ending is not Ending.RUNNING:
        return is_halted(info)  # its launcher killed it, because it did not react
    return info.python_blocked or (idle >= ended + window and rank not in case.starved)


def starved_rank(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """The members that have not joined have waited for a processor most of the time since they moved, and have had
    less than the window for themselves: they are late."""
    culprits = _named(case, root)
    if root.node.dead or not case.starved.issuperset(culprits):
        return None
    said = sentences.starved_texts(case, root.node, culprits)
    return _claim(case, claims, root, Category.STRAGGLER, culprits, said)


def message_missing(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """A rank did not make the other half of a message: it continued without it, or is in no call."""
    culprits = _named(case, root)
    if root.node.instance.p2p is None:
        return None
    category = _category(case, root.node, culprits)
    said = sentences.unmatched_texts(
        case, root.node.instance, culprits[0], has_passed=category is Category.UNMATCHED_P2P
    )
    return _claim(case, claims, root, category, culprits, said)


def absent_rank(case: Case, claims: Claims, root: Blocked) -> Outcome:
    """Members have not joined, wait in no other call, and have not moved for the window. Those in a section with a
    limit are named apart from those in none."""
    culprits = _named(case, root)
    in_section = [rank for rank in culprits if _is_in_section(case, rank)]
    rest = [rank for rank in culprits if rank not in in_section]
    found: list[Claim] = []
    for ranks in filter(None, (rest, in_section)):
        said = sentences.holding_texts(case, root.node, ranks)
        claim = _claim(case, claims, root, _category(case, root.node, ranks), ranks, said)
        found.append(replace(claim, name=beside(claim.key)) if found else claim)
    return tuple(found)


def _is_in_section(case: Case, rank: int) -> bool:
    """True if the rank's program has said how long its present work may take, even if that time is over."""
    info, item = case.evidence.ranks.get(rank), case.overdue.get(rank)
    return (item is not None and item.kind == "section") or (info is not None and is_excused(info))


def _named(case: Case, root: Blocked) -> Sequence[int]:
    """Return the ranks to name. Ranks that are only late are named only if the instance waits for no others."""
    if root.node.dead:
        return root.culprits
    found = not_done(case, root.node, others(case, root.culprits))
    return case.with_lost([rank for rank in found if rank not in case.starved] or found)


def _category(case: Case, node: Node, culprits: Iterable[int]) -> Category:
    infos = [case.evidence.ranks.get(rank) for rank in culprits]
    if any(info is not None and info.python_blocked for info in infos):
        return Category.RANK_STUCK
    if node.instance.p2p is None or all(is_in_no_call(case, rank, node.instance) for rank in culprits):
        return Category.MISSING_RANK
    return Category.UNMATCHED_P2P


def _claim(
    case: Case,
    claims: Claims,
    root: Blocked,
    category: Category,
    culprits: Sequence[int],
    said: Sequence[str],
) -> Claim:
    node, said = root.node, list(said)
    ahead = _ahead_of_others(case, claims, node, culprits)
    caused_by = claims.same_culprits(case, culprits) or ahead
    if node.dead:
        caused_by = caused_by or died_in_mismatch(case, claims, culprits)
    if root.unseen:
        caused_by = caused_by or claims.first_cause
    if case.unheard.issuperset(culprits):
        said.append(sentences.only_unheard_text(node.waiting))
    stuck_on: Literal["host", "device"] | None = None
    if category is Category.MISSING_RANK and all(
        case.syncs.of(rank) and not is_in_barrier(case, rank) for rank in culprits
    ):
        stuck_on = "device"
        said += device_texts.sync_texts(case, culprits)
    elif category not in (Category.RANK_DEAD, Category.STRAGGLER) and are_blocked(case, node, culprits):
        stuck_on = "host"
        said.append(rank_texts.host_text(case.evidence, node.instance, culprits))
    blames = tuple(culprits) if ahead is None else ()
    return replace(claim_of(node, category, culprits, said), stuck_on=stuck_on, caused_by=caused_by, blames=blames)


def absent_claim(case: Case, node: Node, ranks: Sequence[int], detail: str, explains: Iterable[InstanceKey]) -> Claim:
    """Return the claim about ranks out of step for which others wait. ``detail`` says what these ranks did instead."""
    said = [*sentences.holding_texts(case, node, ranks), detail]
    return replace(claim_of(node, Category.MISSING_RANK, ranks, said), explains=tuple(explains))


def _ahead_of_others(case: Case, claims: Claims, node: Node, culprits: Iterable[int]) -> str | None:
    """Return the key of a mismatch that shows that the only waiting rank is ahead of most others.

    If this rank waits for more than half of the group, it has reached a call that is not yet due there.
    """
    if node.dead or len(node.waiting) != 1 or 2 * len(set(culprits)) <= len(node.instance.members):
        return None
    for bad in case.mismatches:
        if bad.has_majority and bad.differing == node.waiting and bad.instance.key in claims.cause_of:
            return claims.cause_of[bad.instance.key]
    return None


def _astray(case: Case, claims: Claims, node: Node, culprits: Sequence[int]) -> MisdirectedMessage | None:
    """Return the misdirected message in this node, if the culprits left no call out: they ended well, or left."""
    infos = [case.evidence.ranks.get(rank) for rank in culprits]
    if node.instance.p2p is None or not infos:
        return None
    if not all(
        info is not None and (info.ending is Ending.CLEAN or info.has_left(node.instance.group.id)) for info in infos
    ):
        return None
    if any(n is not node and not set(culprits).isdisjoint(n.culprits) for n in case.nodes.values()):
        return None  # others wait for them too: they ended early
    found = find_misdirected(case.instances, [key for key in case.nodes if key not in claims.cause_of])
    return found if found is not None and found.astray is node.instance else None


STAGE = Stage(
    blocked,
    (
        named_already,
        may_still_join,
        call_too_many,
        death_elsewhere,
        unseen_stall,
        misdirected_message,
        dead_rank,
        starved_rank,
        message_missing,
        absent_rank,
    ),
)
