"""Findings made once the causes are known: what followed from them, and endings that no collective explains."""

from __future__ import annotations

from otel_fr.match import ending_sentences, sentences
from otel_fr.match.case import Case
from otel_fr.match.endings import describe_ending, gave_up_at_store, was_stopped
from otel_fr.match.instances import InstanceKey
from otel_fr.match.model import CallState, Category, Ending, Finding
from otel_fr.presentation import ranks_text

DEATHS = "ranks"
"""Key of the deaths that no instance shows. They are one fault: one rank may only have been seen to end first."""


def downstream(case: Case) -> None:
    """Ranks that wait because of a cause found elsewhere."""
    reported = {finding.key for finding in case.causes + case.consequences}
    on_device = {rank for finding in case.causes if finding.stuck_on == "device" for rank in finding.culprit_ranks}
    for key, node in case.nodes.items():
        cause = _cause(case, key)
        if cause is None or node.instance.name in reported:
            continue
        if node.behind is not None and node.behind[:2] != key[:2]:
            continue  # All joined it, and every group may have one: reporting these would hide the others.
        if on_device.issuperset(node.waiting):
            continue  # Its device does not complete it, and no other rank waits there.
        missing = sorted({*node.next, *node.culprits})
        if not missing:
            waiting = set(node.waiting)
            missing = [rank for rank in node.instance.members if rank not in waiting]
        summary = sentences.downstream_text(node.instance, node.waiting, missing)
        finding = case.finding(node.instance, Category.MISSING_RANK, (), node.waiting, summary)
        finding.caused_by, finding.age = cause, case.age(node)
        case.add(finding)


def _cause(case: Case, key: InstanceKey) -> str | None:
    """The key of the cause that is reached from an instance along the wait-for graph."""
    seen: set[InstanceKey] = set()
    todo = [key]
    while todo:
        at = todo.pop(0)
        if at in case.cause_of:
            return case.cause_of[at]
        if at not in seen and at in case.nodes:
            seen.add(at)
            todo.extend(case.nodes[at].targets)
    return None


def other_deaths(case: Case) -> None:
    """Ranks that ended by a fault of their own which no instance shows."""
    reported = {
        rank for finding in case.causes if finding.category is Category.RANK_DEAD for rank in finding.culprit_ranks
    }
    ranks = sorted(case.deaths - reported - case.told_deaths)
    if not ranks:
        return
    summary, details = ending_sentences.endings_text(ranks, case.evidence, case.machines)
    finding = Finding(
        key=DEATHS,
        category=Category.RANK_DEAD,
        group=None,
        operation="",
        sequence_id=None,
        stream="collective",
        culprit_ranks=tuple(ranks),
        waiting_ranks=(),
        summary=summary,
        details=tuple(details),
        caused_by=case.lasting[0].key if case.lasting else None,
    )
    case.explain(finding, {})
    case.add(finding)


def missed_meeting(case: Case) -> None:
    """Ranks that timed out waiting for others at the store (to create a group, for example)."""
    ranks = case.evidence.ranks
    gave_up = sorted(r for r, info in ranks.items() if gave_up_at_store(info))
    if case.lasting or not gave_up:
        return
    others = sorted({*ranks, *range(case.evidence.world_size or 0)} - set(gave_up))
    # No recorder shows which ranks were expected. If one other rank exists, it is the culprit; of several, some may
    # not have been expected.
    culprits = others if len(others) == 1 else []
    first, details = gave_up[0], list[str]()
    summary = (
        f"{ranks_text(gave_up)} gave up waiting for other ranks at the job's store:"
        f" rank {first} {describe_ending(ranks[first])}"
    )
    if others:
        summary += f"; absent: {case.machines.named(others)}"
        shown = others[: sentences.MAX_ENDINGS]
        details = [sentences.where_text(case.evidence, rank, case.lasts.get(rank)) for rank in shown]
    finding = Finding(
        key="store",
        category=Category.MISSING_RANK if culprits else Category.STALLED_COLLECTIVE,
        group=None,
        operation="",
        sequence_id=None,
        stream="collective",
        culprit_ranks=tuple(culprits),
        waiting_ranks=tuple(gave_up),
        summary=summary,
        details=tuple(details),
    )
    case.explain(finding, {})
    case.add(finding)


def unexplained_failures(case: Case) -> None:
    """Ranks that ended because a collective failed, where no finding explains the failure."""
    if case.lasting:
        return
    raised = {r for r, info in case.evidence.ranks.items() if info.ending is Ending.RAISED and not was_stopped(info)}
    for node in case.nodes.values():
        failed = [r for r in node.waiting if r in raised and node.instance.call(r).state is CallState.FAILED]
        if not failed:
            continue
        endings, details = ending_sentences.endings_text(failed, case.evidence, case.machines)
        summary = f"{sentences.instance_text(node.instance)} failed; the evidence does not show the cause: {endings}"
        finding = case.finding(node.instance, Category.STALLED_COLLECTIVE, (), node.waiting, summary, details)
        finding.age = case.age(node)
        case.add(finding)
        return
