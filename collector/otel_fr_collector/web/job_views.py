"""The list of jobs as JSON."""

from __future__ import annotations

import asyncio
import hashlib

from otel_fr.api_answers import Job, JobState, LateRank
from otel_fr.incident import timestamp
from otel_fr.match.lateness import Lateness
from otel_fr.presentation import group_name
from otel_fr.waits.blocks import may_be_chance
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.web.rank_states import NotRunning, not_running, tally_of
from otel_fr_collector.web.rates import latest_rates

MAX_HOSTS = 4
"""Machines that the list of jobs shows for each job. They distinguish runs of the same name."""
MIN_WAITED = 0.01
"""Lateness of a rank is shown if others wait for it for at least this share of their time."""


def job_key(run: RunId) -> str:
    """A run's key in URLs: 16 hex digits, whatever the job's name contains."""
    text = "\x1f".join(("job", run.job, str(run.attempt), run.run))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


async def summary(run: Run, book: IncidentBook, now: float, wall: float) -> Job:
    """A job's line in the list of jobs. Yields to the event loop now and then.

    Args:
        now, wall: monotonic and Unix time.
    """
    seen = await not_running(run, now, book.dead_ranks(run.id))
    await asyncio.sleep(0)
    return head_of(run, book, seen, now, wall)


def head_of(run: Run, book: IncidentBook, seen: NotRunning, now: float, wall: float) -> Job:
    """A job's line in the list of jobs, from the states of its ranks."""
    causes, tally = open_causes(run, book), tally_of(run, seen.states)
    named = list(run.slowest(now))
    return {
        "id": job_key(run.id),
        "collector_page": None,
        "job": run.id.job,
        "job_title": run.title,
        "attempt": run.id.attempt,
        "run_id": run.id.run,
        "service": run.resource.get("service.name"),
        "state": _job_state(run, tally, {incident.severity for incident in causes}, is_stopped=seen.is_stopped),
        "world_size": run.world_size,
        "hosts": _hosts(run),
        "ranks": tally,
        "groups": len(run.groups),
        "lag": run.levels.by_group().lag(),
        "late": _latest(run, named),
        "rates": latest_rates(run, named, now),
        "incidents": [incident.id for incident in causes],
        "first_heard_at": timestamp(wall - (now - run.first_seen)),
        "last_heard_at": timestamp(wall - (now - run.last_seen)),
    }


def open_causes(run: Run, book: IncidentBook) -> list[Incident]:
    """The run's open incidents that follow from no other."""
    return [incident for incident in book.open_of(run.id) if incident.cause is None]


def _job_state(run: Run, tally: dict[str, int], severities: set[str], *, is_stopped: bool) -> JobState:
    """``incident``, ``slow`` (its incidents are warnings), ``replaced`` (by a newer attempt), ``ended``, ``stopped``
    (from outside), ``failed``, ``silent`` or ``running``."""
    if severities:
        return "incident" if "critical" in severities else "slow"
    if run.is_replaced:
        return "replaced"
    if run.ended_clean:
        return "ended"
    if tally.get("running"):
        return "running"
    if is_stopped:
        return "stopped"
    if not tally.get("silent") and any(tally.get(name) for name in ("raised", "killed", "gone", "stopped")):
        return "failed"
    return "silent"


def _hosts(run: Run) -> list[str]:
    """The first machines, in the order of ranks."""
    found: dict[str, None] = {}
    for rank in range(len(run.ranks)) if len(run.ranks) == run.world_size else sorted(run.ranks):
        found[run.ranks[rank].place.machine if rank in run.ranks else ""] = None
        if len(found) > MAX_HOSTS:
            break
    return [name for name in found if name][:MAX_HOSTS]


def _latest(run: Run, named: list[tuple[GroupState, Lateness]]) -> LateRank | None:
    """The rank for which others wait most, over all groups. None: nobody waits, or it may be chance.

    Until some group has the blocks that lateness needs (`otel_fr.waits.blocks.MIN_SHOWN`), it is one of the ranks that
    are ``named`` for the latest waits.
    """
    found = [
        (state, one.rank, one.seconds, one.share, one.waited)
        for state in run.groups.values()
        if state.waits.blocks.kept
        for one in state.waits.blocks.lateness()[:1]
        if one.waited >= MIN_WAITED and not may_be_chance(round(one.share * one.blocks), one.blocks)
    ] or [(state, one.rank, one.seconds, one.share, one.waited) for state, one in named]
    if not found:
        return None
    state, rank, seconds, share, waited = max(found, key=lambda item: item[-1])
    return {
        "rank": rank,
        "process_group": group_name(state.group.name, state.group.description),
        "seconds": round(seconds, 4),
        "share": round(share, 4),
        "waited": round(waited, 4),
    }
