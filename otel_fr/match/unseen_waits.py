"""Ranks that seem to be in no call because their backend does not show when calls end: they may wait unseen."""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.match.case import Case
from otel_fr.match.instances import Instance, instance_key
from otel_fr.match.model import Ending


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


def others(case: Case, culprits: Sequence[int]) -> Sequence[int]:
    """Those that are known not to wait, or to be out of step; all of them if that is known of none."""
    known = [rank for rank in culprits if not may_wait(case, rank) or rank in case.steps.culprits]
    return known or culprits


def last_of_all(case: Case, culprits: Sequence[int]) -> Instance | None:
    """The instance after which none of its members, with these ranks among them, has enqueued a call."""
    last = case.lasts.get(culprits[0])
    key = instance_key(last.call) if last is not None else None
    instance = case.instances.get(key) if key is not None else None
    if instance is None or len(instance.members) < 2 or not set(culprits) <= set(instance.members):
        return None
    calls = [(instance.calls.get(rank), case.lasts.get(rank)) for rank in instance.members]
    same = all(own is not None and newest is not None and own[-1] is newest.call for own, newest in calls)
    return instance if same else None
