"""Ranks that come last again and again. No call is blocked: the evidence is how long their peers waited for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from otel_fr.match.facts.machines import Machines
from otel_fr.match.finding import MAX_PLACED_CULPRITS, Category, Finding
from otel_fr.match.model import Group, Place
from otel_fr.match.texts.calls import group_of
from otel_fr.presentation import short_duration_text, summary_text, verb

RULE = "last_again_and_again"
"""Name of the only rule that is not about a call that waits."""


class Lateness(NamedTuple):
    """How late one rank was in the latest blocks of time in which members of a group waited for one another.

    Attributes:
        share: share of these blocks in which the rank was late.
        blocks: number of these blocks.
        seconds: how long after half of the group the rank came, on average over the collectives in which it was late.
        waited: share of the time for which the others waited for the rank.
        span: seconds from the first block to now.
        age: seconds for which the rank has come last without a pause.
    """

    rank: int
    share: float
    blocks: int
    seconds: float
    waited: float
    span: float
    age: float


def finding_of(
    group: Group, late: Sequence[Lateness], places: Mapping[int, Place], looks: Mapping[int, Sequence[str]]
) -> Finding:
    """Return the finding about the ranks that come last in a group.

    Args:
        places: rank -> where it runs, as far as that is known.
        looks: rank -> the lines where it was seen.
    """
    seen = {rank: Counter(sites).most_common(1)[0] for rank, sites in sorted(looks.items())}
    culprits = tuple(sorted(one.rank for one in late))
    return Finding(
        key=f"straggler:{group.id}",
        rule=RULE,
        category=Category.STRAGGLER,
        group=group,
        operation="",
        sequence_id=None,
        stream="collective",
        culprit_ranks=culprits,
        waiting_ranks=tuple(rank for rank in group.ranks if rank not in culprits),
        summary=summary_text(late_text(group, late, Machines(places, is_whole=False))),
        age=max(one.age for one in late),
        call_sites={rank: site for rank, (site, _) in seen.items()},
        details=tuple(
            [
                summary_text(f"rank {rank} was at {site} in {count} of {len(looks[rank])} looks")
                for rank, (site, count) in seen.items()
            ]
        ),
        places=dict(sorted(places.items())[:MAX_PLACED_CULPRITS]),
    )


def late_text(group: Group, late: Sequence[Lateness], machines: Machines) -> str:
    """``"rank 3 (gpu-17) comes last in default_pg (0): in 96 % of the latest 64 blocks with waits, ..."``."""
    ranks = [one.rank for one in late]
    count = max(one.blocks for one in late)
    share = min(one.share for one in late)
    behind = sum(one.seconds for one in late) / len(late)
    waited = max(one.waited for one in late)
    return (
        f"{machines.named(ranks)} {verb(ranks, 'comes', 'come')} last in {group_of(group)}: in"
        f" {verb(ranks, '', 'at least ')}{share:.0%} of the latest {count} blocks with waits, by"
        f" {short_duration_text(behind)} on average; the others wait {waited:.0%} of their time".replace("%", " %")
    )
