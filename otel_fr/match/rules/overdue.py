"""Ranks whose heartbeat or section is overdue: a cause of its own, unless they wait for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from otel_fr.match.case import Case
from otel_fr.match.facts.endings import was_stopped
from otel_fr.match.facts.overdue import CATEGORIES, by_kind
from otel_fr.match.model import CallState, Ending, Overdue, Rank
from otel_fr.match.rules.claims import Claim, Claims, Outcome
from otel_fr.match.rules.rule import Rule, Stage
from otel_fr.match.texts import ending_texts

Alike = tuple[str, Mapping[int, Overdue]]
"""What is overdue, and the ranks whose same thing is: one fault, since ranks run alike."""


def _unnamed(case: Case, claims: Claims) -> dict[int, Overdue]:
    """The overdue ranks that no cause names."""
    named = {rank for cause in claims.causes for rank in cause.culprits}
    return {rank: item for rank, item in case.overdue.items() if rank not in named}


def _overdue(case: Case, claims: Claims) -> Iterator[Alike]:
    """Of those that wait in no call."""
    if not (found := _unnamed(case, claims)):
        return
    waiting = {rank for node in case.nodes.values() for rank in node.waiting} | {
        c.rank for c in case.evidence.calls if c.state is CallState.IN_FLIGHT and c.age != 0 and not c.queued
    }
    infos = case.evidence.ranks
    yield from by_kind({r: item for r, item in found.items() if r not in waiting and _may_be_cause(infos[r])}).items()


def _may_be_cause(info: Rank) -> bool:
    """It lives, or was ended by its monitor or its launcher: a rank that ends on its own is no longer overdue."""
    return info.ending is Ending.RUNNING or info.ended_by_monitor or was_stopped(info)


def _overran(case: Case, claims: Claims, root: Alike) -> Outcome:
    return (_claim(case, root, culprits=tuple(root[1]), caused_by=claims.first_cause),)


def _ended_in_a_wait(case: Case, claims: Claims) -> Iterator[Alike]:
    infos = case.evidence.ranks
    found = {} if claims.causes else _unnamed(case, claims)
    yield from by_kind({rank: item for rank, item in found.items() if infos[rank].ended_by_monitor}).items()


def _waited(case: Case, _: Claims, root: Alike) -> Outcome:
    return (_claim(case, root, waiting=tuple(root[1])),)


def _claim(
    case: Case,
    root: Alike,
    *,
    culprits: tuple[int, ...] = (),
    waiting: tuple[int, ...] = (),
    caused_by: str | None = None,
) -> Claim:
    name, alike = root
    summary, details = ending_texts.overrun_texts(case, alike)
    return Claim(
        category=CATEGORIES[next(iter(alike.values())).kind],
        culprits=culprits,
        waiting=waiting,
        summary=summary,
        details=tuple(details),
        name=name,
        values={rank: ending_texts.overdue_value(item) for rank, item in alike.items()},
        caused_by=caused_by,
        age=max(item.age for item in alike.values()),
    )


STAGES = (
    Stage(
        "overdue",
        "Ranks with a heartbeat or section that has lasted longer than its limit, and that no cause names.",
        _overdue,
        (
            Rule(
                "limit_exceeded",
                "They wait in no call, so others wait for them, or will. (A cause that names such ranks says so, and"
                " takes this category where it was a missing rank.)",
                _overran,
            ),
        ),
    ),
    Stage(
        "ended_overdue",
        "Ranks that their monitors ended for that, while they waited in a call, if there is no cause.",
        _ended_in_a_wait,
        (Rule("ended_at_limit", "It is not known for whom they waited: nobody is named.", _waited),),
    ),
)
