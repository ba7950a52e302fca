"""Whether one rank's missing or extra calls explain what all ranks have called: a second explanation that fits.

A rank explains a job if its own calls can be changed in one place (a call left out is put in, or an extra one is taken
away) so that all ranks can have run one program: there is one order of collectives and messages of which each rank has
called a first part of what is its own, calls of one instance have arguments that fit, and no rank ended well before a
call that others made with it. Nothing is assumed of that program: neither that its steps repeat, nor that groups of one
kind run alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from otel_fr.match import Ending
from tests.support.random_jobs.simulation import SimulatedCall, Simulation
from tests.support.random_jobs.views import Ends

RECENT = 160
"""Calls of each rank that are looked at: what happened before has completed everywhere."""

MAX_STEP = 40
"""Calls of the longest step that a rank is taken to have left out or repeated."""

Stream = tuple[str, ...] | tuple[str, int, int, str]
"""(group,), or (group, source, destination, operation): what a rank counts its calls by."""
_Step = tuple[Stream, object]
"""A call: its stream, and its token (None: fits anything)."""


def explains(job: Simulation, ends: Ends, rank: int, *, steps: bool = False) -> bool:
    """Whether one change of the rank's calls makes all ranks' calls fit together.

    Args:
        steps: several calls in a row may be left out or repeated, as when a rank makes a step less or more.
    """
    recent = {r: calls[-RECENT:] for r, calls in job.calls.items()}
    before = {r: _counts(calls[: max(0, len(calls) - RECENT)]) for r, calls in job.calls.items()}
    done = {r for r, info in ends.infos.items() if info.ending is Ending.CLEAN}
    others = {r: [(stream_of(c), c.op.token) for c in calls] for r, calls in recent.items() if r != rank}
    mine = [(stream_of(c), c.op.token) for c in recent[rank]]
    streams: set[Stream] = {(g.id,) for g in job.program.groups if rank in g.ranks and len(g.ranks) > 1}
    streams |= {stream_of(c) for c in job.calls[rank] if c.op.is_message}
    members = {group.id: group.ranks for group in job.program.groups}
    if not _fits(others, before, done, members):
        return False  # it is not the only rank that is out of step
    return any(_fits({**others, rank: changed}, before, done, members) for changed in _changes(mine, streams, steps))


def stream_of(call: SimulatedCall) -> Stream:
    if len(call.place) == 4:
        return call.place[0], call.place[1], call.place[2], call.op.signature.operation
    return (call.op.group.id,)


def _counts(calls: Iterable[SimulatedCall]) -> dict[Stream, int]:
    found: dict[Stream, int] = {}
    for call in calls:
        found[stream_of(call)] = found.get(stream_of(call), 0) + 1
    return found


def _changes(mine: list[_Step], streams: Iterable[Stream], steps: bool) -> Iterator[list[_Step]]:
    size = len(mine)
    for at in reversed(range(size + 1)):
        if at < size:
            yield mine[:at] + mine[at + 1 :]
        for stream in sorted(streams, key=str):
            yield [*mine[:at], (stream, None), *mine[at:]]
    if not steps:
        return
    for end in reversed(range(1, size + 1)):
        for begin in range(max(0, end - MAX_STEP), end - 1):
            yield mine[:begin] + mine[end:]
            yield [*mine[:end], *((stream, None) for stream, _ in mine[begin:end]), *mine[end:]]


def _fits(
    calls: Mapping[int, Sequence[_Step]],
    before: Mapping[int, Mapping[Stream, int]],
    done: set[int],
    members: Mapping[str, tuple[int, ...]],
) -> bool:
    """Whether all can be parts of one program."""
    tokens: dict[tuple[object, ...], object] = {}
    after: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    totals: dict[tuple[int, Stream], int] = {}
    for rank, steps in calls.items():
        counts = dict(before[rank])
        last: tuple[object, ...] | None = None
        for stream, token in steps:
            number = counts[stream] = counts.get(stream, 0) + 1
            instance = (*stream[:3], number)
            if token is not None and tokens.setdefault(instance, token) != token:
                return False
            after.setdefault(instance, set())
            if last is not None:
                after[last].add(instance)
            last = instance
        for stream, number in counts.items():
            totals[rank, stream] = number
    for (rank, stream), number in totals.items():
        for other in members[stream[0]] if len(stream) == 1 else stream[1:3]:
            own = stream if len(stream) == 1 else (*stream[:3], "recv" if stream[3] == "send" else "send")
            if other != rank and other in done and other in calls and totals.get((other, own), 0) < number:
                return False
    return not _has_cycle(after)


def _has_cycle(after: Mapping[tuple[object, ...], set[tuple[object, ...]]]) -> bool:
    waits_for = dict.fromkeys(after, 0)
    for targets in after.values():
        for target in targets:
            waits_for[target] += 1
    ready = [node for node, count in waits_for.items() if not count]
    seen = 0
    while ready:
        seen += 1
        for target in after[ready.pop()]:
            waits_for[target] -= 1
            if not waits_for[target]:
                ready.append(target)
    return seen < len(after)
