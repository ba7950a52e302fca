"""What no root of a wait shows: consequences, endings, overdue activities, waits at the job's store, other failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from otel_fr.match.case import Case
from otel_fr.match.facts.ranks import CATEGORIES, by_kind, gave_up_at_store, was_stopped
from otel_fr.match.finding import Category
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import CallState, Ending, Overdue, Rank
from otel_fr.match.rules.claims import Claim, Claims, Stage, claim_of
from otel_fr.match.rules.standing import died_in_mismatch
from otel_fr.match.texts import ranks as rank_texts
from otel_fr.match.texts import sentences

DEATHS = "ranks"
"""Key of the deaths that no instance shows. They are one fault: which rank was seen to end first proves nothing."""
STORE = "store"


def consequences(case: Case, claims: Claims) -> Iterator[tuple[Node, str]]:
    """Calls that no rule has claimed, and whose waits lead to a root that a rule has claimed."""
    reported = {claim.key for claim in claims}
    on_device = {rank for claim in claims.causes if claim.stuck_on == "device" for rank in claim.culprits}
    told: dict[tuple[object, ...], set[int]] = {}
    for key, node in case.nodes.items():
        cause = claims.cause_from(case, key)
        if cause is None:
            continue
        before = told.setdefault(key[:-1], set())  # Where hosts run ahead, a rank waits in many calls of one group.
        is_told = before.issuperset(node.waiting)
        before.update(node.waiting)
        if is_told or node.instance.name in reported:
            continue
        if node.behind is not None and node.behind[:2] != key[:2]:
            continue  # All joined it. Every group may have such a call, and these would hide the other consequences.
        if on_device.issuperset(node.waiting):
            continue  # Only ranks whose own devices do not complete it wait there.
        yield node, cause


def downstream(_: Case, __: Claims, root: tuple[Node, str]) -> Claim:
    """It is a consequence of that claim, and names nobody."""
    node, cause = root
    missing = sorted({*node.next, *node.culprits}) or sorted(set(node.instance.members).difference(node.waiting))
    return Claim(
        category=Category.MISSING_RANK,
        waiting=node.waiting,
        said=[sentences.downstream_text(node.instance, node.waiting, missing)],
        instance=node.instance,
        age=node.age,
        caused_by=cause,
    )


def endings(case: Case, claims: Claims) -> list[tuple[str | None, list[int]]]:
    """Ranks that ended by their own fault, which no call shows."""
    told = {rank for claim in claims if claim.category is Category.RANK_DEAD for rank in claim.culprits}
    by_cause: dict[str | None, list[int]] = {}
    for rank in sorted(case.deaths - told):
        cause = claims.same_culprits(case, [rank]) or died_in_mismatch(case, claims, [rank])
        by_cause.setdefault(cause, []).append(rank)
    return list(by_cause.items())


def rank_ended(case: Case, _: Claims, root: tuple[str | None, list[int]]) -> Claim:
    """They are named together. A death in calls that do not fit together is a consequence of the mismatch, and so is
    the death of a rank that called wrongly."""
    cause, ranks = root
    return Claim(
        category=Category.RANK_DEAD,
        culprits=tuple(ranks),
        said=rank_texts.endings_texts(ranks, case.evidence, case.machines),
        name=DEATHS if cause is None else f"{DEATHS}/{cause}",
        caused_by=cause,
    )


def overdue(case: Case, claims: Claims) -> list[tuple[str, dict[int, Overdue]]]:
    """Ranks with a heartbeat or section past its limit, if no cause names them."""
    if not (found := _unnamed(case, claims)):
        return []
    waiting = {rank for node in case.nodes.values() for rank in node.waiting} | {
        c.rank for c in case.evidence.calls if c.state is CallState.IN_FLIGHT and c.age != 0 and not c.queued
    }
    infos = case.evidence.ranks
    found = {r: item for r, item in found.items() if r not in waiting and _may_be_cause(infos[r])}
    return list(by_kind(found).items())


def limit_exceeded(case: Case, claims: Claims, root: tuple[str, dict[int, Overdue]]) -> Claim:
    """They wait in no call, so others wait for them, or will. (A missing rank that is overdue gets this category
    instead.)"""
    return replace(_overdue_claim(case, *root), culprits=tuple(root[1]), caused_by=claims.first_cause)


def _may_be_cause(info: Rank) -> bool:
    """True if the rank lives, or its monitor or launcher ended it. A rank that ends on its own is no longer overdue."""
    return info.ending is Ending.RUNNING or info.ended_by_monitor or was_stopped(info)


def ended_overdue(case: Case, claims: Claims) -> list[tuple[str, dict[int, Overdue]]]:
    """Overdue ranks that their monitors ended while they waited in a call, if there is no cause."""
    found = {} if claims.causes else _unnamed(case, claims)
    found = {rank: item for rank, item in found.items() if case.evidence.ranks[rank].ended_by_monitor}
    return list(by_kind(found).items())


def ended_at_limit(case: Case, _: Claims, root: tuple[str, dict[int, Overdue]]) -> Claim:
    """It is not known for whom they waited: nobody is named."""
    return replace(_overdue_claim(case, *root), waiting=tuple(root[1]))


def _unnamed(case: Case, claims: Claims) -> dict[int, Overdue]:
    """Return the overdue ranks that no cause names."""
    named = {rank for cause in claims.causes for rank in cause.culprits}
    return {rank: item for rank, item in case.overdue.items() if rank not in named}


def _overdue_claim(case: Case, name: str, alike: Mapping[int, Overdue]) -> Claim:
    """Return the claim about ranks with the same overdue activity: one fault, since ranks run alike."""
    return Claim(
        category=CATEGORIES[next(iter(alike.values())).kind],
        said=rank_texts.overrun_texts(case, alike),
        name=name,
        values={rank: rank_texts.overdue_value(item) for rank, item in alike.items()},
        age=max(item.age for item in alike.values()),
    )


def store(case: Case, claims: Claims) -> list[list[int]]:
    """Ranks that gave up waiting for others at the job's store, if there is no cause."""
    ranks = sorted(r for r, info in case.evidence.ranks.items() if gave_up_at_store(info))
    return [ranks] if ranks and not claims.lasting else []


def absent_at_store(case: Case, _: Claims, ranks: list[int]) -> Claim:
    """The only other rank is named; of several, none."""
    others = sorted({*case.evidence.ranks, *range(case.evidence.world_size or 0)} - set(ranks))
    # No recorder shows which ranks were expected. If one other rank exists, it is the culprit; of several, some may
    # not have been expected.
    culprits = others if len(others) == 1 else []
    return Claim(
        category=Category.MISSING_RANK if culprits else Category.STALLED_COLLECTIVE,
        culprits=tuple(culprits),
        waiting=tuple(ranks),
        said=sentences.store_texts(case, ranks, others),
        name=STORE,
    )


def failures(case: Case, claims: Claims) -> list[tuple[Node, list[int]]]:
    """The first call whose failure ended ranks, if there is no cause."""
    raised = {r for r, info in case.evidence.ranks.items() if info.ending is Ending.RAISED and not was_stopped(info)}
    for node in case.nodes.values() if not claims.lasting else ():
        failed = [r for r in node.waiting if r in raised and node.instance.call(r).state is CallState.FAILED]
        if failed:
            return [(node, failed)]
    return []


def unexplained_failure(case: Case, _: Claims, root: tuple[Node, list[int]]) -> Claim:
    """The evidence does not show why: nobody is named."""
    node, failed = root
    return claim_of(node, Category.STALLED_COLLECTIVE, (), rank_texts.unexplained_texts(case, node.instance, failed))


STAGES = (
    Stage(consequences, (downstream,)),
    Stage(endings, (rank_ended,)),
    Stage(overdue, (limit_exceeded,)),
    Stage(ended_overdue, (ended_at_limit,)),
    Stage(store, (absent_at_store,)),
    Stage(failures, (unexplained_failure,)),
)
