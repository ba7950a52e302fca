"""Recognizes reports that differ from the rank's latest one only in counts and times, as most do.

A rank that moves reports only its counts (`otel_fr.monitor.telemetry.brief_reports`). When one rank blocks a large job,
all others stand still, and each reports the same calls again and again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from otel_fr.match import Overdue
from otel_fr.match.facts.ranks import reported_within
from otel_fr.rank_report import RankReport, ReportedCall
from otel_fr_collector import timeline
from otel_fr_collector.jobs.calls import RankCall, state_of
from otel_fr_collector.jobs.rank_reports import queued_of
from otel_fr_collector.jobs.ranks import RankState, moves_of


def says_the_same(state: RankState, given: RankReport, sent: float) -> bool:
    """Whether a report differs from the rank's latest one only in counts and times.

    Fields that a rank sends once (`ranks.ELSEWHERE`) are not kept in its latest report: a report with any differs.

    Args:
        sent: when the report was sent, on the collector's monotonic clock.
    """
    known, said = state.report, state.contents
    if known is None or said.failed or said.overdue:
        return False
    # Values that are new in each report may differ. Calls and activities are compared below, in their stored form.
    like_known = replace(
        given,
        number=known.number,
        idle_s=known.idle_s,
        starved_s=known.starved_s,
        step=known.step,
        step_s=known.step_s,
        interval_s=known.interval_s,
        unlisted_s=known.unlisted_s,
        sampled=known.sampled,
        groups=(),
        in_flight=(),
        last=None,
        activity=(),
    )
    if like_known != known or (given.activity and any(item.is_overdue for item in given.activity)):
        return False
    if _name_of(said.within) != (_name_of(reported_within(given.activity)) if given.activity else None):
        return False
    return (
        _are_texts_current(state, given)
        and _are_same(said.inflight, given.in_flight, sent)
        and _is_same_last(said.last, given.last)
    )


def _name_of(within: Overdue | None) -> tuple[str, float] | None:
    return None if within is None else (within.name, within.limit)


def _are_texts_current(state: RankState, given: RankReport) -> bool:
    """Whether the rank has not ended, and has not moved since its stack, site and patterns were taken."""
    if state.ended is not None:
        return False
    if not (state.stack or state.site or state.patterns):
        return not state.python_blocked or given.python_blocked is True
    return moves_of(given) == state.stack_moves


def _are_same(known: Sequence[RankCall], given: Sequence[ReportedCall], now: float) -> bool:
    if not known and not given:
        return True
    return len(known) == len(given) and all(_is_same(*pair, now) for pair in zip(known, given, strict=True))


def _is_same(known: RankCall, given: ReportedCall, now: float) -> bool:
    """Whether both are the same call in the same state, and ``given``, sent at ``now``, does not date it earlier.

    A record number names one call of a rank.
    """
    if known.record != given.record or known.sequence_id != given.sequence or known.group != given.group:
        return False
    if (
        known.is_queued
        or given.is_queued
        or known.is_queued is not queued_of(given)
        or known.state is not state_of(given.state, given.error)
    ):
        return False
    if given.is_posted:
        return known.enqueued_at is None and known.age == 0.0
    waited = given.age_s if given.wait_s is None else given.wait_s
    if waited is None or known.enqueued_at is None:
        return False
    return now - waited >= known.enqueued_at - timeline.EARLIER


def _is_same_last(known: RankCall | None, given: ReportedCall | None) -> bool:
    if known is None or given is None:
        return known is None and given is None
    return (
        known.record == given.record
        and known.group == given.group
        and known.sequence_id == given.sequence
        and known.is_queued is queued_of(given)
        and known.state is state_of(given.state, given.error)
    )
