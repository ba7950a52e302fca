"""Progress reports of a rank that stands still: they say what the report before has said, but for counts and times.

All ranks of a large job but one stand still together, and each tells again and again in which calls. This is a shorter
way to the state that `Run.add_report` leads to.
"""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.match import Overdue
from otel_fr.match.facts import overdue
from otel_fr.rank_report import RankReport, ReportedCall
from otel_fr_collector.jobs.calls import RankCall, state_of
from otel_fr_collector.jobs.rank_reports import KeptReport, queued_of
from otel_fr_collector.jobs.ranks import DELAY, DESTROYED, RankState
from otel_fr_collector.jobs.run import Run

EARLIER = 0.1
"""Seconds by which a report may date a call earlier than the one before did and still say the same: its way here was
shorter."""


def add_same(run: Run, given: RankReport, now: float, lag: float = 0.0) -> bool | None:
    """Take a progress report that says what the rank's latest one said.

    Args:
        lag: as of `Run.lag_of`.

    Returns:
        as `Run.add_report`; None: it says something else, and nothing was taken.
    """
    state = run.ranks.get(given.rank)
    report = None if state is None else state.report
    if state is None or report is None:
        return None
    if given.number <= report.number:
        return False
    sent = now - lag
    if not (_says_nothing_else(given) and _says_the_same(report, given) and _are_texts_current(state, given, sent)):
        return None
    if not _are_same(report.inflight, given.in_flight, sent) or not _is_same_last(report.last, given.last):
        return None
    found = run.known_groups(state, given.groups)
    if found is None:
        return None
    number = given.number
    for own, one, group in found:
        if one.fingerprint:
            run.note_fingerprint(group, given.rank, one.fingerprint, now)
        own[0] = max(own[0], one.enqueued)
        own[1] = max(own[1], one.completed)
        own[2:] = (DESTROYED, one.p2p_enqueued, -1) if one.is_destroyed else (number, one.p2p_enqueued, one.enqueued)
    report.number, report.idle, report.step, report.interval = number, given.idle_s, given.step, given.interval_s
    state.note_within(report, now - lag)
    run.note_same(state, given.step, now, lag)
    return True


def _says_nothing_else(given: RankReport) -> bool:
    """It has none of what a rank says once."""
    said = given.failed or given.exit or given.exception or given.thread_exceptions or given.decisions or given.on_hang
    return not (said or given.stack or given.file or any(item.is_overdue for item in given.activity))


def _says_the_same(report: KeptReport, given: RankReport) -> bool:
    hook_errors = given.dropped.hook_errors if given.dropped is not None else 0
    return (
        report.stall == given.stall_s
        and report.inflight_more == given.in_flight_more
        and report.site == given.site
        and report.doing == given.doing
        and report.addresses == given.addresses
        and report.unreached == given.unreached
        and report.python_blocked is given.python_blocked
        and report.running_here == given.running_here
        and report.hook_errors == hook_errors
        and report.is_brief is given.is_brief
        and report.is_exiting is given.is_exiting
        and report.exit_message == given.exit_message
        and report.exit_site == given.exit_site
        and report.records_creations is given.records_creations
        and report.peer_timeout == given.peer_timeout
        and _name_of(report.within) == (_name_of(overdue.reported_within(given.activity)) if given.activity else None)
        and not (report.failed or report.stack or report.exception_stack or report.overdue or report.file)
        and not (report.decisions or report.thread_exceptions or report.ending or report.ended_by_monitor)
    )


def _name_of(within: Overdue | None) -> tuple[str, float] | None:
    return None if within is None else (within.name, within.limit)


def _are_texts_current(state: RankState, given: RankReport, now: float) -> bool:
    """The rank has not ended, and has not moved since its stack and site were taken."""
    if state.ended is not None:
        return False
    if not (state.stack or state.site):
        return not state.python_blocked or given.python_blocked is True
    return given.idle_s is not None and given.idle_s + DELAY >= now - state.stack_arrived


def _are_same(known: Sequence[RankCall], given: Sequence[ReportedCall], now: float) -> bool:
    return len(known) == len(given) and all(_is_same(*pair, now) for pair in zip(known, given, strict=True))


def _is_same(known: RankCall, given: ReportedCall, now: float) -> bool:
    """A record number names one call of a rank. ``now``: the call is dated, and not earlier than before."""
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
    return now - waited >= known.enqueued_at - EARLIER


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
