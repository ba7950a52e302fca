"""Reads from a rank's file what the match engine needs to know about the rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import structs

from otel_fr.analyze.assemble.clocks import LATEST, clock_offsets
from otel_fr.dumps.columns import COMPLETED, Mask
from otel_fr.dumps.model import Dump
from otel_fr.dumps.ring_files import RING
from otel_fr.match.facts.ranks import process_ending, reported, reported_within
from otel_fr.match.model import MAX_HOST, CallState, Decision, Ending, Place, Progress, Rank, ThreadException
from otel_fr.rank_report import (
    MAX_ACTIVITIES,
    MAX_DECISIONS,
    MAX_DOING,
    MAX_LOOPS,
    MAX_THREAD_EXCEPTIONS,
    DropCounts,
    ReportedActivity,
    ReportedDecision,
    ReportedException,
    ReportedExit,
    ReportedLoop,
    names_of,
    section_of,
    sections_of,
)
from otel_fr.stacks import Loop, site_of


def rank_of(dump: Dump, ids: Mapping[str, str]) -> Rank:
    """Make the `Rank` of a file. ``ids``: the file's key of a group -> `Group.id`."""
    facts = dump.facts
    exit_ = section_of(ReportedExit, facts.get("exit"))
    exception = section_of(ReportedException, facts.get("exception")) or ReportedException()
    of_threads = sections_of(ReportedException, facts.get("thread_exceptions"), MAX_THREAD_EXCEPTIONS)
    decisions = sections_of(ReportedDecision, facts.get("decisions"), MAX_DECISIONS)
    activities = sections_of(ReportedActivity, facts.get("activity"), MAX_ACTIVITIES)
    loops = sections_of(ReportedLoop, facts.get("left"), MAX_LOOPS)
    dropped = section_of(DropCounts, facts.get("dropped"))
    ending, signal, code = _end(dump, exit_, exception.text)
    rank = Rank(
        dump.rank,
        ending=ending,
        exception="" if ending is Ending.CLEAN else exception.text,
        exception_site="" if ending is Ending.CLEAN else exception.raised_at,
        exiting=facts.get("exiting") is True,
        exit_message=dump.text("exit_message"),
        thread_exceptions=tuple([ThreadException(item.thread, item.text, item.raised_at) for item in of_threads]),
        python_blocked=facts.get("python_blocked") is True,
        site=dump.text("site") or site_of(dump.text("stack")),
        stack=dump.text("stack") or exception.stack,
        left_loops=tuple([Loop(*structs.astuple(item)) for item in loops]),
        progress={
            ids[key]: Progress(of.enqueued, of.completed, of.first_recorded, of.destroyed, of.messages)
            for key, of in dump.groups.items()
            if key in ids
        },
        has_gaps=dropped is not None and dropped.hook_errors > 0,
        complete=not dump.partial or dump.source != "otel-fr",
        records_creations=facts.get("creations") is True,
        file=dump.path,
        overdue=reported(activities),
        within=reported_within(activities),
        ended_by_monitor=dump.text("on_hang") == "kill" and exit_ is not None,
        ended_for_peer=exit_ is not None and exit_.is_for_peer,
        doing=dump.text("doing")[:MAX_DOING],
        decisions=tuple([Decision(*structs.astuple(item)) for item in decisions]),
        step=dump.integer("step"),
        kill_reason="" if exit_ is None else exit_.reason,
    )
    rank.signal, rank.exit_code = signal, code
    rank.starved = number(facts.get("starved_s")) or 0.0
    rank.idle, rank.completed_age, rank.place = _idle(dump), _completed_age(dump), _place(dump)
    rank.addresses, rank.unreached = names_of(facts.get("addresses")), names_of(facts.get("unreached"))
    _note_destroyed(dump, ids, rank)
    if rank.ending is Ending.RAISED and not rank.exception_site:
        rank.exception_site = dump.text("exit_site")
    return rank


def note_ends(
    dumps: Sequence[Dump], ids: Mapping[int, Mapping[str, str]], groups: Iterable[str], ranks: Mapping[int, Rank]
) -> None:
    """Set `Rank.ended_for`: the seconds from a rank's end to the writing of the newest file.

    A monitor writes its rank's file when the rank ends.

    Args:
        ids, groups: as in `clock_offsets`.
    """
    ended = [dump.rank for dump in dumps if dump.facts.get("exit") is not None and dump.text("reason") != RING]
    if not ended:
        return
    offsets = clock_offsets(dumps, ids, groups)
    times = {dump.rank: dump.integer("written_at") for dump in dumps}
    written = {rank: at + offsets[rank] for rank, at in times.items() if at is not None and 0 < at < LATEST}
    newest = max(written.values(), default=0)
    for rank in ended:
        if rank in written:
            ranks[rank].ended_for = (newest - written[rank]) / 1e9


def _place(dump: Dump) -> Place:
    """Where the rank ran."""
    host, *others = (dump.text(name)[:MAX_HOST] for name in ("host", "gpu", "pod", "node", "namespace"))
    return Place(host, dump.integer("pid"), dump.integer("local_rank"), *others)


def destroys(dump: Dump) -> Mask:
    """Mask of the calls that destroy their group."""
    entries = dump.entries
    return np.array([signature.destroys for signature in entries.signatures] or [False], np.bool_)[entries.signature]


def _note_destroyed(dump: Dump, ids: Mapping[str, str], rank: Rank) -> None:
    """Note the lines at which the rank destroyed its groups."""
    for entry in dump.entries.at(np.flatnonzero(destroys(dump))):
        progress = rank.progress.get(ids.get(entry.group, ""))
        if progress is not None and entry.state is CallState.COMPLETED:
            progress.destroyed_at = entry.site


def _completed_age(dump: Dump) -> float | None:
    """Seconds since the rank enqueued its newest completed call. None: not known.

    Calls that destroy groups do not count: the rank may make them after a failed call.
    """
    entries = dump.entries
    if entries.age is None:
        return None
    ages = entries.age[(entries.state == COMPLETED) & ~np.isnan(entries.age) & ~destroys(dump)]
    return float(ages.min()) if len(ages) else None


def _end(dump: Dump, exit_: ReportedExit | None, exception: str) -> tuple[Ending, int | None, int | None]:
    """How the rank ended, by which signal, and with which exit code."""
    signal = code = None
    if exit_ is not None:
        signal = exit_.signal if exit_.signal > 0 else None
        # A code of 0 means nothing if the status is not known.
        code = exit_.code if exit_.code or exit_.is_known else None
        is_clean = exit_.is_clean
    elif exception or dump.facts.get("clean") is True:
        is_clean = not exception
    else:
        return Ending.RUNNING, None, None
    ending = process_ending(
        signal=signal, exit_code=code, clean=is_clean, exception=exception, exit_message=dump.text("exit_message")
    )
    return ending, signal, None if signal else code


def _idle(dump: Dump) -> float | None:
    """Seconds since the rank last enqueued or ended a call in any group."""
    groups = dump.facts.get("groups")
    items = groups if isinstance(groups, list) else []
    idle = [number(item.get("idle_s")) for item in items if isinstance(item, dict)]
    return min((seconds for seconds in idle if seconds is not None), default=None)


def number(value: object) -> float | None:
    """Return a fact as a number of seconds. None: it is not a plausible number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12:
        return float(value)
    return None
