"""One job as JSON: its ranks by process group. A large job lists its hosts and the ranks that differ instead."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

import numpy as np

from otel_fr.api_answers import Job, JobDetail, JobGroup, Lane, NodeRange, RankStateName, SlowLink, WaitingRanks
from otel_fr.identity import encode_ranks
from otel_fr.match import Group
from otel_fr.match.lateness import Lateness
from otel_fr.presentation import UNDESCRIBED, signal_text
from otel_fr_collector.incidents.book import IncidentBook
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.levels import Standings
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.web.job_views import MIN_WAITED, head_of, open_causes
from otel_fr_collector.web.node_map import all_ranks, is_expected, map_nodes
from otel_fr_collector.web.rank_states import not_running
from otel_fr_collector.web.slow_links import slow_links
from otel_fr_collector.web.waits_of_ranks import WAITING, Wait, call_of, waits_of

MAX_WHOLE = 1_024
"""A job of at most this many ranks lists all of them: the page has a cell for each."""
MAX_NAMED = 64
"""Ranks, or ranges of ranks, that are named. More are only counted."""
MAX_GROUPS = 200
"""Process groups of a larger job that are described, in addition to the groups of listed ranks."""
MAX_WAITS = 64
"""Calls with waiting ranks that are listed."""
PIECE, GROUPS_AT_ONCE, MEMBERS = 128, 64, 65_536
"""How many ranks, groups and members of groups are processed before the event loop runs other tasks."""


def _late(run: Run) -> dict[int, tuple[str, Lateness]]:
    """Ranks for which others wait, with the group in which others wait for them most, and how late they are there."""
    found: dict[int, tuple[str, Lateness]] = {}
    for group in run.groups.values():
        for one in group.waits.blocks.lateness():
            known = found.get(one.rank)
            if one.waited >= MIN_WAITED and (known is None or known[1].waited < one.waited):
                found[one.rank] = group.group.id, one
    return found


class Picture(NamedTuple):
    """A job at one moment. The lists of a large job are bounded, however many ranks it has.

    Attributes:
        states: the states of ranks that have sent something and do not run.
        steps: the lowest and the highest step of its ranks. None: no rank reports steps.
        waiting: calls in which ranks wait, each with the id of its group.
        late: ranks for which others wait, each with the id of the group in which others wait for them most.
        nodes: the hosts. Empty if all ranks are listed.
        listed: the ranks that are described: all of them, or those that differ.
        groups: ids of groups that are described in addition to the groups of listed ranks.
    """

    head: Job
    states: dict[int, RankStateName]
    steps: list[int] | None
    waiting: list[tuple[str, WaitingRanks]]
    slow_links: list[SlowLink]
    late: dict[int, tuple[str, Lateness]]
    nodes: list[NodeRange]
    listed: list[int]
    groups: list[str]


async def picture(run: Run, book: IncidentBook, now: float, wall: float) -> Picture:
    """The job at this moment. Yields to the event loop now and then.

    Args:
        now, wall: monotonic and Unix time.
    """
    states, _ = seen = await not_running(run, now, book.dead_ranks(run.id))
    nodes: list[NodeRange] = []
    listed = all_ranks(run)
    is_large = len(listed) > MAX_WHOLE
    waits = await waits_of(run, now, WAITING if is_large else 0.0)
    late = _late(run)
    await asyncio.sleep(0)
    if is_large:
        overdue = [rank for rank, state in run.waiting.items() if state.contents.overdue and state.ended is None]
        odd = [*overdue, *sorted(late, key=lambda rank: -late[rank][1].waited)]
        nodes, listed = await map_nodes(run, states, waits, open_causes(run, book), odd, now)
    await asyncio.sleep(0)
    steps = [state.report.step for state in run.ranks.values() if state.report and state.report.step is not None]
    await asyncio.sleep(0)
    head = head_of(run, book, seen, now, wall)
    await asyncio.sleep(0)
    waiting = [(one.group, _waiting(one)) for one in waits[:MAX_WAITS]]
    links = await slow_links(run)
    await asyncio.sleep(0)
    return Picture(
        head,
        states,
        [min(steps), max(steps)] if steps else None,
        waiting,
        links,
        late,
        nodes,
        listed,
        _uneven(run) if nodes else list(run.groups),
    )


def _uneven(run: Run) -> list[str]:
    """The groups whose ranks are furthest apart. Among equal ones, the largest."""
    spans = run.levels.by_group().spans()

    def lag(gid: str) -> tuple[int, int]:
        low, high = spans.get(gid, (0, 0))
        return high - low, len(run.groups[gid].group.ranks)

    return heapq.nlargest(MAX_GROUPS, run.groups, key=lag)


async def detail(run: Run, seen: Picture, now: float, asked: Iterable[int] = ()) -> JobDetail:
    """One job in full. Lists under ``ranks`` and ``lanes`` are parallel to ``ranks.rank``.

    A lane contains groups that share no rank (the tensor-parallel groups of a job, say): one column of a grid.

    Args:
        asked: further ranks to list.
    """
    numbers = sorted({*seen.listed, *(rank for rank in asked if is_expected(run, rank))})
    position = {rank: index for index, rank in enumerate(numbers)}
    members = await _members(run, numbers)
    named = {*seen.groups, *members, *(gid for gid, _ in seen.waiting), *(gid for gid, _ in seen.late.values())}
    groups = sorted(
        (state for gid in named if (state := run.groups.get(gid)) is not None),
        key=lambda one: (-len(one.group.ranks), one.group.name),
    )
    index_of = {state.group.id: index for index, state in enumerate(groups)}
    columns = _empty_columns(len(numbers))
    columns["rank"] = list(numbers)
    for count, rank in enumerate(numbers):
        if count % PIECE == PIECE - 1:
            await asyncio.sleep(0)
        if rank in run.ranks:
            _fill_rank(columns, count, run, run.ranks[rank], now, index_of)
            columns["state"][count] = seen.states.get(rank, "running")
        if rank in seen.late:
            gid, one = seen.late[rank]
            columns["late"][count] = [index_of.get(gid), *(round(n, 4) for n in (one.share, one.seconds, one.waited))]
    shown = await _groups(run, groups)
    own = [members.get(state.group.id, set()) for state in groups]
    lanes = await _lanes(run, shown, own, position)
    more = {
        "ranks": {**columns, "tally": seen.head["ranks"]},
        "lanes": lanes,
        "groups": shown,
        "group_count": len(run.groups),
        "steps": seen.steps,
        "waiting": [{**one, "group": index_of.get(gid)} for gid, one in seen.waiting],
        "slow_links": seen.slow_links,
        "nodes": seen.nodes,
    }
    return cast("JobDetail", {**seen.head, **more})


def _waiting(wait: Wait) -> WaitingRanks:
    ranges = encode_ranks(sorted(wait.ranks)).split(",")
    return {
        "operation": wait.operation,
        "sequence_id": wait.number,
        "group": None,
        "seconds": round(max(wait.ranks.values()), 1),
        "count": len(wait.ranks),
        "ranks": ",".join(ranges[:MAX_NAMED]),
    }


async def _members(run: Run, listed: list[int]) -> dict[str, set[int]]:
    """Return the ranks of ``listed`` that each group has. Groups with none are left out."""
    wanted = set(listed)
    found: dict[str, set[int]] = {}
    looked_at = 0
    for gid, state in list(run.groups.items()):
        own = wanted.intersection(state.group.ranks)
        if own:
            found[gid] = own
        looked_at += len(state.group.ranks)
        if looked_at > MEMBERS:
            looked_at = 0
            await asyncio.sleep(0)
    for rank in listed:
        known = run.ranks.get(rank)
        for gid in () if known is None else known.progress:
            found.setdefault(gid, set()).add(rank)
    return found


def _empty_columns(size: int) -> dict[str, list[object]]:
    empty: dict[str, Callable[[], object]] = {
        "rank": int, "state": lambda: "unheard", "host": str, "idle_s": lambda: None, "site": str, "how": str,
        "waits": lambda: None, "step": lambda: None, "overdue": lambda: None, "late": lambda: None,
    }  # fmt: skip
    return {name: [make() for _ in range(size)] for name, make in empty.items()}


def _fill_rank(
    columns: dict[str, list[object]], at: int, run: Run, state: RankState, now: float, index_of: dict[str, int]
) -> None:
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
    call = call_of(run, state, now)
    if call is not None:
        columns["waits"][at] = [call.operation, call.number, index_of.get(call.group), round(call.seconds, 1)]


def _how(state: RankState) -> str:
    """How a rank ended, and which of its threads raised last, as text."""
    ended = "" if state.exit_code is None else f"exit code {state.exit_code}"
    if state.exception or state.signal:
        ended = state.exception or signal_text(state.signal or 0)
    raised = [f"thread {item.thread} raised {item.exception}" for item in state.thread_exceptions[-1:]]
    return "; ".join(text for text in (ended, *raised) if text)


async def _lanes(run: Run, groups: list[JobGroup], members: list[set[int]], position: dict[int, int]) -> list[Lane]:
    """The lanes. Writes each group's lane into its row. ``members``: the listed members of each group."""
    lanes: list[Lane] = []
    taken: list[set[int]] = []
    names: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        own = members[number]
        name = f"{group['size']} ranks" if group["description"] in UNDESCRIBED else group["description"]
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
        group["lane"] = found
        _fill_lane(lanes[found], run, number, group["id"], own, position)
        if number % GROUPS_AT_ONCE == GROUPS_AT_ONCE - 1:
            await asyncio.sleep(0)
    return lanes


def _fill_lane(lane: Lane, run: Run, number: int, group: str, own: set[int], position: dict[int, int]) -> None:
    column, enqueued, completed = lane["group"], lane["enqueued"], lane["completed"]
    for rank in own:
        at = position[rank]
        column[at] = number
        state = run.ranks.get(rank)
        progress = state.progress.get(group) if state is not None else None
        if progress is not None:
            enqueued[at], completed[at] = progress[:2]


async def _groups(run: Run, groups: list[GroupState]) -> list[JobGroup]:
    """The rows of groups, before they have a lane."""
    found, levels = [], run.levels.by_group()
    for count, state in enumerate(groups, 1):
        found.append(_group(state.group, levels.of(state.group.id)))
        if count % GROUPS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


def _group(group: Group, known: Standings) -> JobGroup:
    ranks, enqueued, completed = known
    front, back = (int(enqueued.max()), int(enqueued.min())) if len(ranks) else (0, 0)
    behind = np.sort(ranks[enqueued < front])
    # If most ranks are behind, only the few in front differ from the rest: list those furthest behind.
    last = behind if len(behind) <= len(ranks) / 2 else np.sort(ranks[enqueued == back])
    members = group.ranks or ranks.tolist()
    return {
        "id": group.id,
        "name": group.name,
        "description": group.description,
        "lane": 0,
        "size": len(members),
        "ranks": encode_ranks(sorted(members)),
        "enqueued": [back, front],
        "completed": [int(completed.min()), int(completed.max())] if len(ranks) else [0, 0],
        "behind": encode_ranks(last[:MAX_NAMED].tolist()),
        "behind_count": len(behind),
    }
