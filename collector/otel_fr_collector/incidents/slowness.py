"""Finds ranks that always come last in a group. Nothing is blocked, so the match engine does not judge this."""

from __future__ import annotations

from collections.abc import Mapping

from otel_fr.match import Finding
from otel_fr.match.lateness import finding_of
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.ranks import LOOKS
from otel_fr_collector.jobs.run import Run


def find(run: Run, known: Mapping[str, Finding]) -> dict[str, Finding | None]:
    """The finding about each group; None: no rank comes last persistently, so its open incident is over.

    Args:
        known: the findings of the open incidents, by group.
    """
    return {
        number: _find(run, group, known.get(number))
        for number, group in run.groups.items()
        if group.waits.blocks.kept or number in known
    }


def _find(run: Run, group: GroupState, known: Finding | None) -> Finding | None:
    """The finding about a group; None: no rank of it comes last persistently.

    Args:
        known: the finding of the group's open incident. It holds until its ranks are known not to come last any more.
    """
    waits, so_far = group.waits, () if known is None else known.culprit_ranks
    if not group.group.ranks:
        return known
    if run.ended_clean or (so_far and all(_is_done(run, rank, group.group.id) for rank in so_far)):
        return None
    if so_far and waits.is_over(so_far):
        waits.blocks.forget()
        return None
    # Earlier waits for a rank that has left are still kept. They must not open the incident again.
    late = waits.blocks.stragglers(so_far)
    late = [one for one in late if one.rank in so_far or not _is_done(run, one.rank, group.group.id)]
    if not late:
        return known
    places = {one.rank: run.ranks[one.rank].place for one in late if one.rank in run.ranks}
    looks = {one.rank: run.ranks[one.rank].looks for one in late if one.rank in run.ranks}
    return finding_of(group.group, late, places, {rank: own for rank, own in looks.items() if len(own) >= LOOKS})


def _is_done(run: Run, rank: int, group: str) -> bool:
    """Whether the rank has ended, or has destroyed the group."""
    state = run.ranks.get(rank)
    if state is None:
        return False
    return state.ended is not None or (group in state.progress and state.has_destroyed(group))
