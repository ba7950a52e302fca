"""Ranks that seem to be in no call because their backend does not show when calls end: they may wait unseen."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr.match import sentences
from otel_fr.match.case import Case
from otel_fr.match.instances import Instance, instance_key
from otel_fr.match.model import Category, Ending
from otel_fr.match.nodes import Node


def may_wait(case: Case, rank: int) -> bool:
    """True if it is alive, and none of its calls is known to have ended.

    It may wait in a call that all members joined, so it is no culprit if another cause is known.
    """
    info = case.evidence.ranks.get(rank)
    return (
        info is not None
        and info.ending is Ending.RUNNING
        and not info.python_blocked
        and any(own.enqueued for own in info.progress.values())
        and not any(own.completed for own in info.progress.values())
    )


def others(case: Case, culprits: list[int]) -> list[int]:
    """Those that are known not to wait, or to be out of step; all of them if that is known of none."""
    known = [rank for rank in culprits if not may_wait(case, rank) or rank in case.steps.culprits]
    return known or culprits


def name_stall(case: Case, node: Node, culprits: list[int]) -> Iterable[int]:
    """Add a finding without culprits if these ranks, for which others wait, probably wait themselves.

    That is so if no member of the last collective of one of them has enqueued a call since, or if they are most of the
    members.

    Returns:
        the ranks that may wait; empty: no finding was added.
    """
    if case.steps.culprits:
        return ()
    last = _last_of_all(case, culprits)
    if last is not None and not set(last.members).isdisjoint(node.waiting):
        return ()  # They joined it after what they wait in, which the others left out.
    if last is None and not 2 * len(culprits) > len(node.instance.members) > 2:
        return ()
    if last is None:
        summary = sentences.many_unseen_text(node.instance, node.waiting, node.culprits)
        finding = case.finding(node.instance, Category.STALLED_COLLECTIVE, (), node.waiting, summary)
    else:
        summary = sentences.unseen_stall_text(last, node.instance, node.waiting)
        finding = case.finding(last, Category.STALLED_COLLECTIVE, (), last.members, summary)
    finding.age = case.age(node)
    finding.caused_by = case.lasting[0].key if case.lasting else None
    case.add(finding)
    case.cause_of[node.instance.key] = finding.caused_by or finding.key
    return culprits if last is None else last.members


def _last_of_all(case: Case, culprits: list[int]) -> Instance | None:
    """The instance after which none of its members, with these ranks among them, has enqueued a call."""
    last = case.lasts.get(culprits[0])
    key = instance_key(last.call) if last is not None else None
    instance = case.instances.get(key) if key is not None else None
    if instance is None or len(instance.members) < 2 or not set(culprits) <= set(instance.members):
        return None
    calls = [(instance.calls.get(rank), case.lasts.get(rank)) for rank in instance.members]
    same = all(own is not None and newest is not None and own[-1] is newest.call for own, newest in calls)
    return instance if same else None
