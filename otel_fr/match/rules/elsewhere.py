"""What no root of a wait shows: endings, waits at the job's store, failures without a known cause, and consequences."""

from __future__ import annotations

from collections.abc import Iterator

from otel_fr.match.case import Case
from otel_fr.match.facts.endings import gave_up_at_store, was_stopped
from otel_fr.match.facts.instances import InstanceKey
from otel_fr.match.finding import Category
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import CallState, Ending
from otel_fr.match.rules.blocked import died_in_mismatch
from otel_fr.match.rules.claims import Claim, Claims, Outcome
from otel_fr.match.rules.rule import Rule, Stage
from otel_fr.match.texts import ending_texts, sentences

DEATHS = "ranks"
"""Key of the deaths that no instance shows. They are one fault: one rank may only have been seen to end first."""
STORE = "store"


def _explained(case: Case, claims: Claims) -> Iterator[tuple[Node, str]]:
    """Calls without a claim, and the key of the cause that the wait-for graph leads to."""
    reported = {claim.key for claim in claims}
    on_device = {rank for claim in claims.causes if claim.stuck_on == "device" for rank in claim.culprits}
    for key, node in case.nodes.items():
        cause = _cause(case, claims, key)
        if cause is None or node.instance.name in reported:
            continue
        if node.behind is not None and node.behind[:2] != key[:2]:
            continue  # All joined it, and every group may have one: reporting these would hide the others.
        if on_device.issuperset(node.waiting):
            continue  # Its device does not complete it, and no other rank waits there.
        yield node, cause


def _downstream(_: Case, __: Claims, root: tuple[Node, str]) -> Outcome:
    node, cause = root
    missing = sorted({*node.next, *node.culprits})
    missing = missing or [rank for rank in node.instance.members if rank not in node.waiting]
    return (
        Claim(
            category=Category.MISSING_RANK,
            waiting=node.waiting,
            summary=sentences.downstream_text(node.instance, node.waiting, missing),
            instance=node.instance,
            age=node.age,
            caused_by=cause,
        ),
    )


def _cause(case: Case, claims: Claims, key: InstanceKey) -> str | None:
    """The key of the cause that is reached from an instance along the wait-for graph."""
    seen: set[InstanceKey] = set()
    todo = [key]
    while todo:
        at = todo.pop(0)
        if at in claims.cause_of:
            return claims.cause_of[at]
        if at not in seen and at in case.nodes:
            seen.add(at)
            todo.extend(case.nodes[at].targets)
    return None


def _deaths(case: Case, claims: Claims) -> Iterator[tuple[list[int], str | None]]:
    """Deaths that no claim names: those that are a cause, and those that follow from a mismatch, with its key."""
    told = {rank for claim in claims if claim.category is Category.RANK_DEAD for rank in claim.culprits}
    by_cause: dict[str | None, list[int]] = {}
    for rank in sorted(case.deaths - told):
        by_cause.setdefault(died_in_mismatch(case, claims, [rank]), []).append(rank)
    for cause, ranks in by_cause.items():
        yield ranks, cause


def _rank_ended(case: Case, _: Claims, root: tuple[list[int], str | None]) -> Outcome:
    ranks, cause = root
    summary, details = ending_texts.endings_text(ranks, case.evidence, case.machines)
    return (
        Claim(
            category=Category.RANK_DEAD,
            culprits=tuple(ranks),
            summary=summary,
            details=tuple(details),
            name=DEATHS if cause is None else f"{DEATHS}/{cause}",
            caused_by=cause,
        ),
    )


def _at_store(case: Case, claims: Claims) -> Iterator[list[int]]:
    ranks = sorted(r for r, info in case.evidence.ranks.items() if gave_up_at_store(info))
    if ranks and not claims.lasting:
        yield ranks


def _absent_at_store(case: Case, _: Claims, ranks: list[int]) -> Outcome:
    others = sorted({*case.evidence.ranks, *range(case.evidence.world_size or 0)} - set(ranks))
    # No recorder shows which ranks were expected. If one other rank exists, it is the culprit; of several, some may
    # not have been expected.
    culprits = others if len(others) == 1 else []
    summary, details = sentences.store_text(case, ranks, others)
    return (
        Claim(
            category=Category.MISSING_RANK if culprits else Category.STALLED_COLLECTIVE,
            culprits=tuple(culprits),
            waiting=tuple(ranks),
            summary=summary,
            details=tuple(details),
            name=STORE,
        ),
    )


def _failures(case: Case, claims: Claims) -> Iterator[tuple[Node, list[int]]]:
    """The first call that failed on ranks which ended for that, if there is no cause."""
    raised = {r for r, info in case.evidence.ranks.items() if info.ending is Ending.RAISED and not was_stopped(info)}
    for node in case.nodes.values() if not claims.lasting else ():
        failed = [r for r in node.waiting if r in raised and node.instance.call(r).state is CallState.FAILED]
        if failed:
            yield node, failed
            return


def _unexplained_failure(case: Case, _: Claims, root: tuple[Node, list[int]]) -> Outcome:
    node, failed = root
    summary, details = ending_texts.unexplained_text(case, node.instance, failed)
    return (
        Claim(
            category=Category.STALLED_COLLECTIVE,
            waiting=node.waiting,
            summary=summary,
            details=tuple(details),
            instance=node.instance,
            age=node.age,
        ),
    )


DOWNSTREAM = Stage(
    "downstream",
    "Calls without a claim from which the wait-for graph leads to the root of one.",
    _explained,
    (Rule("downstream", "It is a consequence of that claim, and names nobody.", _downstream),),
)
DEATHS_STAGE = Stage(
    "endings",
    "Ranks that ended by a fault of their own which no call shows.",
    _deaths,
    (
        Rule(
            "rank_ended",
            "They are named together; those that died in calls that do not fit together, as a consequence of these.",
            _rank_ended,
        ),
    ),
)
STORE_STAGE = Stage(
    "store",
    "Ranks that gave up waiting for others at the job's store, if there is no cause.",
    _at_store,
    (Rule("absent_at_store", "The only other rank is named; of several, none.", _absent_at_store),),
)
FAILURES = Stage(
    "failures",
    "The first call that failed on ranks which ended for that, if there is no cause.",
    _failures,
    (Rule("unexplained_failure", "The evidence does not show why: nobody is named.", _unexplained_failure),),
)
