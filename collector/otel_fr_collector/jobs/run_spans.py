"""Adds the calls of spans to their run. Most of what a collector receives takes this path, so it is short."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr.match import CallState
from otel_fr_collector.jobs.calls import CompactCall, SpanCall, expand, lighten
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run


def add_spans(run: Run, rank: int, calls: Iterable[SpanCall], now: float) -> None:  # noqa: C901, PLR0912, PLR0915
    """Add the calls of one rank's spans to the run."""
    state = run.rank_state(rank)
    if state is None:
        return
    run.last_seen = now
    run.has_news = True
    groups, progress, latest = run.groups, state.progress, state.latest
    previous, previous_end = state.previous_record, state.previous_end
    own_time, is_own_time_used = state.own_time, state.own_time.is_used
    in_flight = CallState.IN_FLIGHT
    group_id, group, own = "", None, None  # mostly as in the call before
    completed: list[CompactCall] = []  # collectives of this group, not yet added to it
    newest, newest_at = None, -1  # of these, the one with the highest number
    for template, sequence, record, pair, start, end, device in calls:
        if template.group.id != group_id or group is None:
            if completed and group is not None:
                _add_completed(run, state, group, completed, newest, now)
            group_id = template.group.id
            group, own = groups.get(group_id), progress.get(group_id)
            newest, newest_at = None, latest[group_id][2] if group_id in latest else -1
            if group is None or not group.group.ranks:
                group = run.group_state(template.group, template.size)
                if group is None:
                    continue
        gap = before = None
        if template.state is not in_flight:
            is_next = record == previous + 1
            if is_next and previous_end:  # 0: it is the rank's first call
                gap = (start - previous_end) / 1e9 if start > previous_end else 0.0
            if record > previous:
                previous, previous_end = record, start
                if end > start:  # `max` takes three times as long
                    previous_end = end
            if is_own_time_used or device is not None or not template.is_completed_collective:
                before = own_time.note(template, rank, max(0, end - start) / 1e9, device, is_next=is_next)
                is_own_time_used = own_time.is_used
        call = (rank, template, sequence, record, pair, start, end, gap, before)
        if own is None and template.stream == "collective":
            own = run.note_progress(state, group_id, sequence, 0)
        if template.is_completed_collective:
            completed.append(call)
            if sequence >= newest_at and own is not None:
                newest, newest_at = call, sequence
            continue
        if completed:
            _add_completed(run, state, group, completed, newest, now)
        if template.stream == "collective":
            if own is not None and sequence > own[0]:
                run.note_progress(state, group_id, sequence, 0)
        elif template.stream == "group" and template.signature.destroys:
            if template.state is CallState.COMPLETED:
                state.note_destroyed(group_id, template.site)
            continue
        if group.add(expand(call)):
            run.note_mismatch(now)
    if completed and group is not None:
        _add_completed(run, state, group, completed, newest, now)
    state.previous_record, state.previous_end = previous, previous_end


def _add_completed(
    run: Run, state: RankState, group: GroupState, calls: list[CompactCall], newest: CompactCall | None, now: float
) -> None:
    """Add a rank's completed collectives of one group to it, and empty their list.

    Args:
        newest: the newest of ``calls``, if it is newer than the rank's progress; else None.
    """
    if newest is not None:
        run.note_progress(state, group.group.id, newest[2], newest[2])
        state.latest[group.group.id] = lighten(newest) if newest[1].is_heavy else newest
    if group.add_completed(calls):
        run.note_mismatch(now)
    calls.clear()
