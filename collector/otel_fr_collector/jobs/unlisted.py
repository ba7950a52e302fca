"""Waits of ranks that report only that they wait, not in which call (`otel_fr.monitor.witness`)."""

from __future__ import annotations

from collections.abc import Mapping

from otel_fr.match import WAIT_SHARE
from otel_fr.rank_report import RankReport
from otel_fr_collector.jobs.groups import GroupState

MAX_ASKED = 64
"""Ranks that are asked at the same time in which call they wait."""


def is_unseen(given: RankReport, groups: Mapping[str, GroupState]) -> bool:
    """Whether the rank has waited for long in a call that no rank has reported."""
    if given.unlisted_s is None or given.unlisted_s < WAIT_SHARE * given.stall_s:
        return False
    open_ = [(one, groups[one.id]) for one in given.groups if one.enqueued > one.completed and one.id in groups]
    return any((one.id, "collective", one.enqueued) not in group.incomplete for one, group in open_)
