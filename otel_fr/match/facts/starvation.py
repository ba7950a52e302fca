"""Ranks whose host gives them no processor: they are late, and not stuck."""

from __future__ import annotations

import dataclasses
from typing import Final

from otel_fr.match.facts.endings import runs_not
from otel_fr.match.model import Ending, Evidence, Rank

MOST: Final = 0.5
"""Share of the time since a rank last moved from which on a wait for a processor explains that."""


def lacks_processor(info: Rank) -> bool:
    """It has waited for a processor most of the time since it last moved."""
    return info.ending is Ending.RUNNING and info.idle is not None and info.starved >= max(0.1, MOST * info.idle)


def is_starved(info: Rank, window: float) -> bool:
    """It `lacks_processor`, and has not had the window for itself yet.

    An endless loop on a busy host has had it in the end: then it counts as one on an idle host does.
    """
    if not lacks_processor(info) or runs_not(info.doing):
        return False
    return (info.idle or 0.0) - info.starved < window


def not_blocked_by_host(evidence: Evidence) -> Evidence:
    """The evidence without `Rank.python_blocked` of starved ranks: they had no processor to answer."""
    ranks = {
        rank: dataclasses.replace(info, python_blocked=False)
        for rank, info in evidence.ranks.items()
        if info.python_blocked and is_starved(info, evidence.window)
    }
    return dataclasses.replace(evidence, ranks={**evidence.ranks, **ranks}) if ranks else evidence
