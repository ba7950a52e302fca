"""The ranks of a large job by host. Neighbouring hosts whose ranks are in the same states share one entry.

Single ranks are listed only if they differ from the rest, or if a request asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_fr.api_answers import NodeRange, NodeRankState, RankStateName
from otel_fr.identity import encode_ranks
from otel_fr_collector.incidents.incident import Incident
from otel_fr_collector.jobs.run import MAX_RANKS_PER_RUN, Run
from otel_fr_collector.web.rank_states import CHUNK
from otel_fr_collector.web.waits_of_ranks import Wait, call_of

MAX_RANGES = 1_024
"""Entries at most. The last one contains all remaining hosts."""
MAX_LISTED = 256
"""Ranks that are listed because they differ."""
WORST: tuple[NodeRankState, ...] = ("culprit", "raised", "killed", "gone", "slow", "behind", "silent", "unheard")
"""The states in which ranks differ from the rest."""
_ORDER: dict[NodeRankState, int] = {
    name: place for place, name in enumerate((*WORST, "waiting", "stopped", "ended", "running"))
}
_LEVEL = len(WORST)


class NodeMap(NamedTuple):
    """All hosts, and the ranks that differ, the worst first. Hosts whose ranks differ come first."""

    nodes: list[NodeRange]
    differing: list[int]


@dataclass(slots=True)
class _Range:
    first: str
    last: str
    states: dict[NodeRankState, int] = field(default_factory=dict)
    ranks: list[int] = field(default_factory=list)
    hosts: int = 1

    @property
    def place(self) -> tuple[int, int]:
        return min(_LEVEL, *(_ORDER[name] for name in self.states)), self.ranks[0]

    def add(self, other: _Range) -> None:
        """Append a range that comes after this one."""
        self.last = other.last
        self.hosts += other.hosts
        self.ranks += other.ranks
        for name, count in other.states.items():
            self.states[name] = self.states.get(name, 0) + count


def is_expected(run: Run, rank: int) -> bool:
    """Return whether a rank belongs to the run: it has sent something, or it is below the world size and the limit."""
    return rank in run.ranks or 0 <= rank < min(run.world_size or 0, MAX_RANKS_PER_RUN)


def all_ranks(run: Run) -> list[int]:
    """All ranks for which `is_expected` is true."""
    expected = range(min(run.world_size or 0, MAX_RANKS_PER_RUN))
    return sorted(run.ranks if len(run.ranks) == len(expected) else {*run.ranks, *expected})


async def map_nodes(
    run: Run,
    states: Mapping[int, RankStateName],
    waits: list[Wait],
    causes: Iterable[Incident],
    odd: Iterable[int],
    now: float,
) -> NodeMap:
    """Map the hosts and ranks of a large job. Yields to the event loop every `CHUNK` ranks.

    Args:
        states: the states of the ranks that do not run.
        waits: calls in which ranks have been for `WAITING` seconds or longer.
        causes: the run's open incidents that follow from no other.
        odd: further ranks to list.
        now: monotonic time.
    """
    seen = await _seen(run, states, waits, causes, now)
    hosts: dict[str, _Range] = {}
    differing: dict[NodeRankState, list[int]] = {name: [] for name in WORST}
    ranks, node = run.ranks, None
    for count, rank in enumerate(all_ranks(run), 1):
        known = ranks.get(rank)
        host = "" if known is None else known.place.host
        if node is None or host != node.first:
            node = hosts.get(host) or hosts.setdefault(host, _Range(host, host))
        name, counts = seen.get(rank) or ("unheard" if known is None else "running"), node.states
        node.ranks.append(rank)
        counts[name] = counts.get(name, 0) + 1
        if name in differing and len(differing[name]) < MAX_LISTED:
            differing[name].append(rank)
        if count % CHUNK == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    joined = await _joined(list(hosts.values()))
    nodes = [_as_json(one) for one in _bounded(joined)]
    await asyncio.sleep(0)
    worst = dict.fromkeys([*(rank for own in differing.values() for rank in own), *odd])
    return NodeMap(nodes, list(worst)[:MAX_LISTED])


async def _seen(
    run: Run, states: Mapping[int, RankStateName], waits: list[Wait], causes: Iterable[Incident], now: float
) -> Mapping[int, NodeRankState]:
    """The states of ranks that do not simply run. The page derives them in the same way for listed ranks
    (page/status.js)."""
    found: dict[int, NodeRankState] = dict(states)
    for wait in waits:
        found.update({rank: "waiting" for rank in wait.ranks if rank not in found})
    await asyncio.sleep(0)
    spans = run.levels.by_group().spans()
    for gid in {wait.group for wait in waits}:
        group, (_, front) = run.groups.get(gid), spans.get(gid, (0, 0))
        for rank in () if group is None else group.group.ranks:
            if rank not in found and rank in run.ranks and _is_behind(run, rank, gid, front, now):
                found[rank] = "behind"
        await asyncio.sleep(0)
    for one in sorted(causes, key=lambda one: one.severity == "critical"):  # "culprit" overrides "slow"
        blamed: NodeRankState = "slow" if one.severity == "warning" else "culprit"
        found.update(dict.fromkeys(one.finding.culprit_ranks, blamed))
    return found


def _is_behind(run: Run, rank: int, group: str, front: int, now: float) -> bool:
    """Return whether the rank is in no call while others have enqueued more in the group."""
    state = run.ranks[rank]
    own = state.progress.get(group)
    return call_of(run, state, now) is None and (own[0] if own is not None else 0) < front


async def _joined(hosts: list[_Range]) -> list[_Range]:
    """Join neighbouring hosts with equal states. An unknown host is never joined."""
    found: list[_Range] = []
    before: dict[NodeRankState, int] | None = None
    for count, node in enumerate(hosts, 1):
        states = node.states
        if found and states == before and node.first:
            found[-1].add(node)
        else:
            found.append(_Range(node.first, node.last, states.copy(), node.ranks))
        before = states if node.first else None
        if count % CHUNK == 0:
            await asyncio.sleep(0)
    return found


def _bounded(found: list[_Range]) -> list[_Range]:
    found.sort(key=lambda one: one.place)
    rest = found[MAX_RANGES:]
    for one in rest:
        found[MAX_RANGES - 1].add(one)
    return found[:MAX_RANGES]


def _as_json(one: _Range) -> NodeRange:
    return {
        "first": one.first,
        "last": one.last,
        "hosts": one.hosts,
        "ranks": encode_ranks(sorted(one.ranks)),
        "states": {name: one.states[name] for name in sorted(one.states, key=_ORDER.__getitem__)},
    }
