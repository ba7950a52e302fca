"""Waits of ranks that say only that they wait (`otel_fr.monitor.witness`)."""

from __future__ import annotations

from collections.abc import Mapping

from otel_fr.match import WAIT_SHARE
from otel_fr.rank_report import RankReport
from otel_fr_collector.jobs.groups import GroupState

MAX_ASKED = 64
"""Ranks that are asked at once in which call they wait."""


def is_unseen(given: RankReport, groups: Mapping[str, GroupState]) -> bool:
    """The rank has waited for long, and no rank has said in which call."""
    if given.unlisted_s is None or given.unlisted_s < WAIT_SHARE * given.stall_s:
        return False
    open_ = [(one, groups[one.id]) for one in given.groups if one.enqueued > one.completed and one.id in groups]
    return any((one.id, "collective", one.enqueued) not in group.incomplete for one, group in open_)
