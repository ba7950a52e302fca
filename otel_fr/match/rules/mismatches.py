"""Calls of one collective or message that do not fit together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from otel_fr.match.case import Case
from otel_fr.match.facts.mismatch import Mismatch, judge, shift_of
from otel_fr.match.facts.new_groups import is_in_another_order, names_of
from otel_fr.match.graph.order import positions
from otel_fr.match.rules.claims import Claim, Claims, stage_of_one
from otel_fr.match.texts import sentences


def _in_order(case: Case) -> Iterable[Mismatch]:
    """The mismatches in the order of the ranks' own calls; those in a group after those in its creation."""
    if len(case.mismatches) < 2:
        return case.mismatches
    found = positions(case.instances, {bad.instance.key for bad in case.mismatches})
    creations = [bad.instance for bad in case.mismatches if bad.instance.stream == "group"]
    created = {name: found[one.key] for one in creations for name in names_of(one)}
    return sorted(
        case.mismatches,
        key=lambda bad: (
            max(found[bad.instance.key], created.get(bad.instance.group.name, 0)),
            bad.instance.stream != "group",
            bad.instance.name,
        ),
    )


def _calls_differ(case: Case, claims: Claims) -> Iterator[Claim]:
    for bad in _in_order(case):
        instance = bad.instance
        own = case.nodes.get(instance.key)
        waiting = _held_up(case, bad)
        age, waits = None, ""
        if own is not None and set(waiting) <= set(own.waiting):
            age = own.age
            waits = sentences.waits_text(case.evidence, instance, waiting, age) if waiting else ""
        yield Claim(
            category=bad.category,
            culprits=bad.differing,
            waiting=waiting,
            summary=sentences.mismatch_text(bad, _shift(case, bad), waits, case.machines),
            instance=instance,
            field=bad.field,
            values=dict(sorted(bad.values.items())),
            age=age,
            caused_by=_explained_by(case, claims, bad),
            explains=(*(key for key, node in case.nodes.items() if node.mismatch is bad), instance.key),
            is_over=bad.is_over,
        )


def _held_up(case: Case, bad: Mismatch) -> tuple[int, ...]:
    """The ranks that wait in it or, if all others went on, in the calls that follow from it."""
    own = case.nodes[bad.instance.key].waiting if bad.instance.key in case.nodes else ()
    behind = {rank for node in case.nodes.values() if node.mismatch is bad for rank in node.waiting}
    return tuple(sorted(set(own).difference(bad.differing) or behind.difference(bad.differing)))


def _shift(case: Case, bad: Mismatch) -> str:
    if not bad.has_majority or (bad.instance.stream == "group" and is_in_another_order(case.instances, bad)):
        return ""
    return shift_of(case.instances, bad)


def _explained_by(case: Case, claims: Claims, bad: Mismatch) -> str | None:
    """The key of an earlier mismatch of the same ranks or, without a majority, of ranks without which all agree."""
    found = claims.same_culprits(case, bad.differing, bad.category)
    if found is not None or bad.has_majority:
        return found
    for cause in claims.lasting:
        calls = {rank: own for rank, own in bad.instance.calls.items() if rank not in cause.culprits}
        is_part = 0 < len(calls) < len(bad.instance.calls)
        if is_part and judge(replace(bad.instance, calls=calls)) is None:
            return cause.key
    return None


STAGE = stage_of_one(
    "mismatch",
    "Calls of one collective or message that do not fit together, in the order of the ranks' own calls.",
    _calls_differ,
    "calls_differ",
    "Operation, sizes, dtype, root or reduce op differ where they must agree. A strict majority shows which ranks are"
    " wrong; without one, all ranks that disagree are named.",
)
