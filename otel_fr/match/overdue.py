"""Ranks whose heartbeat or section is overdue: a cause of its own, or what explains that others wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from otel_fr.match import ending_sentences, sentences
from otel_fr.match.case import Case
from otel_fr.match.endings import was_stopped
from otel_fr.match.model import CallState, Category, Ending, Finding, Overdue, Rank
from otel_fr.presentation import ranks_text

_CATEGORIES = {
    "heartbeat": Category.HEARTBEAT_MISSED,
    "section": Category.SECTION_OVERRUN,
    "outside": Category.SECTION_OVERRUN,
}


def reported(items: Iterable[tuple[str, str, float | None, float | None, bool]]) -> tuple[Overdue, ...]:
    """What is overdue of the activities of a rank report: kind, name, age, limit, overdue."""
    found: list[Overdue] = []
    for kind, name, age, limit, is_overdue in items:
        if is_overdue and age is not None and limit is not None and kind in _CATEGORIES:
            found.append(Overdue(cast("Any", kind), name, age, limit))
    return tuple(found)


def find(case: Case) -> None:
    """Say of each cause which of its culprits are overdue; a rank that is, and waits for none, is a cause itself.

    A rank that waits in a call is overdue because of that, so it is no cause.
    """
    overdue = {rank: found for rank, info in case.evidence.ranks.items() if (found := worst_of(info)) is not None}
    if not overdue:
        return
    for finding in case.causes:
        named = [rank for rank in finding.culprit_ranks if rank in overdue]
        if named:
            _explain(case, finding, {rank: overdue.pop(rank) for rank in named})
    waiting = {rank for node in case.nodes.values() for rank in node.waiting} | _in_calls(case)
    cause = case.lasting[0].key if case.lasting else None
    left = {
        rank: found
        for rank, found in overdue.items()
        if rank not in waiting and _may_be_cause(case.evidence.ranks[rank])
    }
    _add(case, left, named=True, cause=cause)
    if not case.causes:
        # Their monitors ended them while they waited in a call, before that showed whom they waited for.
        infos = case.evidence.ranks
        ended = {rank: found for rank, found in overdue.items() if rank not in left and infos[rank].ended_by_monitor}
        _add(case, ended, named=False)


def worst_of(info: Rank) -> Overdue | None:
    """What is overdue of a rank, or was when it ended; None: nothing."""
    if not info.overdue:
        return None
    # A section says more than a heartbeat; of sections, the innermost that is overdue has been open for the shortest.
    order = {"section": 0, "outside": 1, "heartbeat": 2}
    return min(info.overdue, key=lambda item: (order[item.kind], item.age, item.name))


def _may_be_cause(info: Rank) -> bool:
    """It lives, or was ended by its monitor or its launcher: a rank that ends on its own is no longer overdue."""
    return info.ending is Ending.RUNNING or info.ended_by_monitor or was_stopped(info)


def _in_calls(case: Case) -> set[int]:
    """The ranks with a call in flight that a thread may wait for."""
    return {c.rank for c in case.evidence.calls if c.state is CallState.IN_FLIGHT and c.age != 0 and not c.queued}


def _explain(case: Case, finding: Finding, overdue: Mapping[int, Overdue]) -> None:
    ranks = case.evidence.ranks
    is_all = set(overdue) == set(finding.culprit_ranks)
    ended = finding.category is Category.RANK_DEAD and all(ranks[rank].ended_by_monitor for rank in overdue)
    if is_all and (finding.category is Category.MISSING_RANK or ended):
        finding.category = min((_CATEGORIES[found.kind] for found in overdue.values()), key=list(Category).index)
    finding.values.update({rank: ending_sentences.overdue_value(found) for rank, found in sorted(overdue.items())})
    texts = [ending_sentences.overdue_text(alike, ranks, case.machines) for alike in _by_kind(overdue).values()]
    if not is_all:
        finding.details += tuple(texts)
        return
    named = case.machines.named(finding.culprit_ranks)  # the machine is named once
    rest = finding.summary.replace(named, ranks_text(finding.culprit_ranks), 1)
    finding.summary = "; ".join([*texts, rest])


def _by_kind(overdue: Mapping[int, Overdue]) -> dict[str, dict[int, Overdue]]:
    """Ranks that are overdue with the same: one fault, since ranks run alike. In rising order."""
    found: dict[str, dict[int, Overdue]] = {}
    for rank, item in sorted(overdue.items()):
        found.setdefault(f"{item.kind} {item.name}".strip(), {})[rank] = item
    return found


def _add(case: Case, overdue: Mapping[int, Overdue], *, named: bool, cause: str | None = None) -> None:
    """One finding for each kind. ``named``: the ranks are culprits; otherwise they waited, for whom is not known."""
    for key, alike in _by_kind(overdue).items():
        ranks = tuple(alike)
        shown = ranks[: sentences.MAX_ENDINGS]
        wheres = [sentences.where_texts(case.evidence, rank, case.lasts.get(rank)) for rank in shown]
        first = wheres[0].pop(0)
        details = wheres[0] + ["; ".join(texts) for texts in wheres[1:]]
        finding = Finding(
            key=key,
            category=_CATEGORIES[alike[ranks[0]].kind],
            group=None,
            operation="",
            sequence_id=None,
            stream="collective",
            culprit_ranks=ranks if named else (),
            waiting_ranks=() if named else ranks,
            summary=f"{ending_sentences.overdue_text(alike, case.evidence.ranks, case.machines)}; {first}",
            details=tuple(details),
            values={rank: ending_sentences.overdue_value(item) for rank, item in alike.items()},
            caused_by=cause,
            age=max(item.age for item in alike.values()),
        )
        case.explain(finding, {})
        case.add(finding)
