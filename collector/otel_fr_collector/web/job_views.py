"""The state of jobs as JSON: the list of jobs, and one job's ranks by process group."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import cast

from otel_fr.api_answers import Job, JobDetail, JobGroup, JobState, Lane, LateRank
from otel_fr.identity import encode_ranks
from otel_fr.incident import timestamp
from otel_fr.match import Ending, Group
from otel_fr.presentation import UNDESCRIBED, group_name, signal_text
from otel_fr.waits.blocks import may_be_chance
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs import stops
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.snapshot import reported_calls
from otel_fr_collector.web.rates import latest_rates

CHUNK = 512
"""Ranks processed before the event loop runs other tasks."""
MAX_NAMED = 64
"""Ranks that are listed; of more there is only the count."""
MAX_HOSTS = 4
"""Machines of a job in the list of jobs: they tell runs of one name apart."""
MIN_WAITED = 0.01
"""Share of their time that others wait for a rank, from which its lateness is shown."""

RUNNING, SILENT, UNHEARD = "running", "silent", "unheard"
ENDINGS = {Ending.CLEAN: "ended", Ending.RAISED: "raised", Ending.KILLED: "killed", Ending.GONE: "gone"}


def job_key(run: RunId) -> str:
    """A run's name in URLs: 16 hex digits, whatever its job is called."""
    text = "\x1f".join(("job", run.job, str(run.attempt), run.run))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def rank_state(run: Run, state: RankState, now: float) -> str:
    """``running``, ``silent`` (no more reports), ``unheard``, ``ended`` (well), ``raised``, ``killed``, ``gone``."""
    if state.ended is not None or state.ending in (Ending.RAISED, Ending.KILLED):
        return ENDINGS.get(state.ending, "gone")
    if state.report is None:
        return UNHEARD
    return SILENT if state.is_silent(now, run.silence_floor, run.lateness(now)) else RUNNING


def summary(run: Run, book: IncidentBook, now: float, wall: float) -> Job:
    """One job in the list; ``now``, ``wall``: monotonic and Unix time."""
    tally: dict[str, int] = {}
    for state in run.ranks.values():
        name = rank_state(run, state, now)
        tally[name] = tally.get(name, 0) + 1
    unheard = max(0, (run.world_size or 0) - len(run.ranks))
    if unheard:
        tally[UNHEARD] = tally.get(UNHEARD, 0) + unheard
    open_causes = [i for i in book.open_of(run.id) if i.cause is None]
    return {
        "id": job_key(run.id),
        "collector_page": None,
        "job": run.id.job,
        "job_title": run.title,
        "attempt": run.id.attempt,
        "run_id": run.id.run,
        "service": run.resource.get("service.name"),
        "state": _job_state(run, tally, {incident.severity for incident in open_causes}, now),
        "world_size": run.world_size,
        "hosts": _hosts(run),
        "ranks": tally,
        "groups": len(run.groups),
        "lag": _lag(run),
        "late": _latest(run, now),
        "rates": latest_rates(run, now),
        "incidents": [incident.id for incident in open_causes],
        "first_heard_at": timestamp(wall - (now - run.first_seen)),
        "last_heard_at": timestamp(wall - (now - run.last_seen)),
    }


def _job_state(run: Run, tally: dict[str, int], severities: set[str], now: float) -> JobState:
    """``incident``, ``slow`` (its incidents are warnings), ``replaced`` (by a newer attempt), ``ended``, ``stopped``
    (from outside), ``failed``, ``silent`` or ``running``."""
    if severities:
        return "incident" if "critical" in severities else "slow"
    if run.is_replaced:
        return "replaced"
    if run.ended_clean:
        return "ended"
    if tally.get(RUNNING):
        return "running"
    if stops.is_stopped(run, now):
        return "stopped"
    if not tally.get(SILENT) and any(tally.get(name) for name in ("raised", "killed", "gone")):
        return "failed"
    return "silent"


def _hosts(run: Run) -> list[str]:
    """The first machines of its ranks."""
    found: dict[str, None] = {}
    for rank in sorted(run.ranks):
        found[run.ranks[rank].place.machine] = None
        if len(found) > MAX_HOSTS:
            break
    return [name for name in found if name][:MAX_HOSTS]


def _lag(run: Run) -> int:
    """Collectives by which the last member of a group is behind the first, at worst."""
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    for rank in run.ranks.values():
        for group, own in rank.progress.items():
            count = own[0]
            if count < lowest.get(group, count + 1):
                lowest[group] = count
            if count > highest.get(group, -1):
                highest[group] = count
    return max((highest[group] - lowest[group] for group in lowest), default=0)


def _latest(run: Run, now: float) -> LateRank | None:
    """The rank that is waited for most, of all groups; None: nobody is waited for, or by chance.

    Before there are `MIN_SHOWN` collectives to tell of, it is the one that is named for the latest waits.
    """
    found = [
        (state, one.rank, one.seconds, one.share, one.waited)
        for state in run.groups.values()
        for one in state.waits.lateness()[:1]
        if one.waited >= MIN_WAITED and not may_be_chance(round(one.share * one.blocks), one.blocks)
    ] or [(state, one.rank, one.seconds, one.share, one.waited) for state, one in run.slowest(now)]
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


def _fill_late(columns: dict[str, list[object]], group: GroupState, at: int, position: dict[int, int]) -> None:
    """How late ranks come in the group where they are waited for most: group, share, seconds, waited."""
    for one in group.waits.lateness():
        index = position.get(one.rank)
        if index is None or one.waited < MIN_WAITED:
            continue
        known = columns["late"][index]
        if not isinstance(known, list) or known[3] < one.waited:
            columns["late"][index] = [at, round(one.share, 4), round(one.seconds, 4), round(one.waited, 4)]


async def detail(run: Run, book: IncidentBook, now: float, wall: float) -> JobDetail:
    """One job in full. Lists under ``ranks`` and ``lanes`` are parallel to ``ranks.rank``; yields every `CHUNK` ranks.

    A lane contains groups that share no rank (the tensor-parallel groups of a job, say): one column of a grid.
    """
    head = summary(run, book, now, wall)
    numbers = sorted({*run.ranks, *range(min(run.world_size or 0, 65_536))})
    position = {rank: index for index, rank in enumerate(numbers)}
    groups = sorted(run.groups.values(), key=lambda g: (-len(g.group.ranks), g.group.name))
    index_of = {state.group.id: index for index, state in enumerate(groups)}
    members: list[set[int]] = [set(state.group.ranks) for state in groups]
    columns = _empty_columns(len(numbers))
    for count, rank in enumerate(numbers):
        state = run.ranks.get(rank)
        if count % CHUNK == CHUNK - 1:
            await asyncio.sleep(0)
        if state is None:
            continue
        _fill_rank(columns, count, run, state, now, index_of)
        for group in state.progress:
            at = index_of.get(group)
            if at is not None:
                members[at].add(rank)
    for at, group_state in enumerate(groups):
        _fill_late(columns, group_state, at, position)
    columns["rank"] = list(numbers)
    lanes, lane_of = await _lanes(run, [state.group for state in groups], members, position)
    shown = [await _group(run, state.group, members[at], lane_of[at]) for at, state in enumerate(groups)]
    ranks = {**columns, "tally": head["ranks"]}
    return cast("JobDetail", {**head, "ranks": ranks, "lanes": lanes, "groups": shown})


def _empty_columns(size: int) -> dict[str, list[object]]:
    empty: dict[str, Callable[[], object]] = {
        "rank": int, "state": lambda: UNHEARD, "host": str, "idle_s": lambda: None, "site": str, "how": str,
        "waits": lambda: None, "step": lambda: None, "overdue": lambda: None, "late": lambda: None,
    }  # fmt: skip
    return {name: [make() for _ in range(size)] for name, make in empty.items()}


def _fill_rank(
    columns: dict[str, list[object]], at: int, run: Run, state: RankState, now: float, index_of: dict[str, int]
) -> None:
    columns["state"][at] = rank_state(run, state, now)
    columns["host"][at] = state.host
    columns["site"][at] = state.exception_site or state.site
    columns["how"][at] = _how(state)
    report = state.report
    if report is not None and report.idle_s is not None and state.ended is None:
        columns["idle_s"][at] = round(report.idle_s + max(0.0, now - state.arrived), 1)
    if report is not None:
        columns["step"][at] = report.step
    if report is None or state.ended is not None:
        return
    if state.contents.overdue:
        longest = max(state.contents.overdue, key=lambda item: item.age - item.limit)
        age = round(longest.age + max(0.0, now - state.arrived), 1)
        columns["overdue"][at] = [longest.kind, longest.name, age, longest.limit]
    oldest = min(
        (call for call in reported_calls(run, state) if call.enqueued_at is not None),
        key=lambda call: call.enqueued_at or 0.0,
        default=None,
    )
    if oldest is not None and oldest.enqueued_at is not None:
        age = round(now - oldest.enqueued_at, 1)
        columns["waits"][at] = [oldest.signature.operation, oldest.sequence_id, index_of.get(oldest.group), age]


def _how(state: RankState) -> str:
    """How a rank ended, and which of its threads raised last, in words."""
    ended = "" if state.exit_code is None else f"exit code {state.exit_code}"
    if state.exception or state.signal:
        ended = state.exception or signal_text(state.signal or 0)
    raised = [f"thread {item.thread} raised {item.exception}" for item in state.thread_exceptions[-1:]]
    return "; ".join(text for text in (ended, *raised) if text)


async def _lanes(
    run: Run, groups: list[Group], members: list[set[int]], position: dict[int, int]
) -> tuple[list[Lane], list[int]]:
    """The lanes, and the lane of each group."""
    lanes: list[Lane] = []
    taken: list[set[int]] = []
    names: dict[str, list[int]] = {}
    lane_of: list[int] = []
    for number, group in enumerate(groups):
        own = members[number]
        name = f"{len(own)} ranks" if group.description in UNDESCRIBED else group.description
        found = next((lane for lane in names.get(name, ()) if taken[lane].isdisjoint(own)), None)
        if found is None:
            found = len(lanes)
            beside = names.setdefault(name, [])
            beside.append(found)
            size = len(position)
            lanes.append(
                {
                    "name": name if len(beside) == 1 else f"{name} #{len(beside)}",
                    "group": [None] * size,
                    "enqueued": [None] * size,
                    "completed": [None] * size,
                }
            )
            taken.append(set())
        taken[found] |= own
        lane_of.append(found)
        _fill_lane(lanes[found], run, number, group, own, position)
        await asyncio.sleep(0)
    return lanes, lane_of


def _fill_lane(lane: Lane, run: Run, number: int, group: Group, own: set[int], position: dict[int, int]) -> None:
    column, enqueued, completed = lane["group"], lane["enqueued"], lane["completed"]
    for rank in own:
        at = position.get(rank)
        if at is None:
            continue
        column[at] = number
        state = run.ranks.get(rank)
        progress = state.progress.get(group.id) if state is not None else None
        if progress is not None:
            enqueued[at], completed[at] = progress[:2]


async def _group(run: Run, group: Group, own: set[int], lane: int) -> JobGroup:
    by_rank: dict[int, list[int]] = {}
    for rank in own:
        state = run.ranks.get(rank)
        progress = state.progress.get(group.id) if state is not None else None
        if progress is not None:
            by_rank[rank] = progress
    await asyncio.sleep(0)
    enqueued = [progress[0] for progress in by_rank.values()]
    front, back = max(enqueued, default=0), min(enqueued, default=0)
    behind = sorted(rank for rank, progress in by_rank.items() if progress[0] < front)
    # Where most are behind, only the few in front differ from the rest; then those furthest behind matter.
    last = behind if len(behind) <= len(by_rank) / 2 else [r for r in behind if by_rank[r][0] == back]
    return {
        "id": group.id,
        "name": group.name,
        "description": group.description,
        "lane": lane,
        "size": len(own),
        "ranks": encode_ranks(sorted(own)),
        "enqueued": [back, front],
        "completed": [
            min((s[1] for s in by_rank.values()), default=0),
            max((s[1] for s in by_rank.values()), default=0),
        ],
        "behind": encode_ranks(last[:MAX_NAMED]),
        "behind_count": len(behind),
    }
