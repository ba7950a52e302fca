"""Second explanations that fit a job: other ranks' calls, other devices, the network.

A rank's calls explain a job if one change of them makes all ranks' calls fit one program. The change inserts or removes
a call, swaps two neighbours, or gives a message another peer or tag. Calls fit one program under three conditions:

* there is one order of collectives and messages, and each rank has made the first of its calls in that order;
* the calls of one instance have arguments that fit;
* no rank ended cleanly before a call that others made with it.

The program may be any: its steps need not repeat, and groups of one kind need not run alike.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from otel_fr.match import Ending
from tests.support.random_jobs.faults import Fault
from tests.support.random_jobs.simulation import NEVER, Behaviour, SimulatedCall, Simulation, Stops
from tests.support.random_jobs.views import Ends

RECENT = 160
"""How many of each rank's last calls are examined. Earlier calls have completed on all ranks."""

MAX_STEP = 40
"""Calls of the longest step that is tried as left out or repeated."""

Stream = tuple[str] | tuple[str, int, int, int, str]
"""(group,), or (group, source, destination, tag, operation): a rank numbers its calls within each."""
_Step = tuple[Stream, object]
"""A call: its stream, and its token (None: fits anything)."""


def explains(job: Simulation, ends: Ends, rank: int, *, steps: bool = False) -> bool:
    """Return True if one change of the rank's calls makes all ranks' calls fit together.

    Args:
        steps: several calls in a row may be left out or repeated, as if the rank made one step less or more.
    """
    recent = {r: calls[-RECENT:] for r, calls in job.calls.items()}
    before = {r: _counts(calls[: max(0, len(calls) - RECENT)]) for r, calls in job.calls.items()}
    done = {r for r, info in ends.infos.items() if info.ending is Ending.CLEAN}
    others = {r: [(stream_of(c), c.op.token) for c in calls] for r, calls in recent.items() if r != rank}
    mine = [(stream_of(c), c.op.token) for c in recent[rank]]
    streams: set[Stream] = {(g.id,) for g in job.program.groups if rank in g.ranks and len(g.ranks) > 1}
    messages = [stream_of(c) for calls in job.calls.values() for c in calls if c.op.is_message and rank in c.members]
    streams |= {_own_half(stream, rank) for stream in messages}
    members = {group.id: group.ranks for group in job.program.groups}
    if not _fits(others, before, done, members):
        return False  # another rank is out of step, too
    return any(_fits({**others, rank: changed}, before, done, members) for changed in _changes(mine, streams, steps))


def stream_of(call: SimulatedCall) -> Stream:
    if len(call.place) == 5:
        return *call.place[:4], call.op.signature.operation
    return (call.op.group.id,)


def _own_half(stream: Stream, rank: int) -> Stream:
    """Return the stream of the rank's own half of these messages: its sends or its receives."""
    assert len(stream) == 5
    return *stream[:4], "send" if rank == stream[1] else "recv"


def _counts(calls: Iterable[SimulatedCall]) -> dict[Stream, int]:
    found: dict[Stream, int] = {}
    for call in calls:
        found[stream_of(call)] = found.get(stream_of(call), 0) + 1
    return found


def _changes(mine: list[_Step], streams: Collection[Stream], steps: bool) -> Iterator[list[_Step]]:
    size = len(mine)
    messages = [stream for stream in streams if len(stream) == 5]
    for at in reversed(range(size + 1)):
        if at < size:
            yield mine[:at] + mine[at + 1 :]
        for stream in sorted(streams, key=str):
            yield [*mine[:at], (stream, None), *mine[at:]]
    for at in reversed(range(size)):
        if at and mine[at - 1] != mine[at]:
            yield [*mine[: at - 1], mine[at], mine[at - 1], *mine[at + 1 :]]
        for stream in messages if len(mine[at][0]) == 5 else ():
            if stream != mine[at][0]:
                yield [*mine[:at], (stream, None), *mine[at + 1 :]]
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
    """Return True if these calls can be parts of one program."""
    tokens: dict[tuple[object, ...], object] = {}
    after: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
    totals: dict[tuple[int, Stream], int] = {}
    for rank, steps in calls.items():
        counts = dict(before[rank])
        last: tuple[object, ...] | None = None
        for stream, token in steps:
            number = counts[stream] = counts.get(stream, 0) + 1
            instance = (*stream[:4], number)
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
            own = stream if len(stream) == 1 else (*stream[:4], "recv" if stream[4] == "send" else "send")
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


def other_devices(job: Simulation, fault: Fault, behaviour: Behaviour, *, ends_shown: bool) -> bool:
    """Return True if a stuck device of another rank, or a hung collective, brings the program to the same state.

    Args:
        ends_shown: the state counts the calls that each rank has enqueued and that have ended; else only the enqueued.
    """

    def state(stops: Stops) -> _State:
        again = Simulation(fault.program, behaviour, random.Random(0), stops)
        again.run()
        return _state(again, ends_shown)

    wanted = _state(job, ends_shown)
    places = dict.fromkeys(call.place for call in job.calls[fault.rank] if call.ended == NEVER)
    if any(state(Stops(hung=frozenset({place}))) == wanted for place in list(places)[:MAX_HUNG]):
        return True
    for rank in sorted(job.calls):
        for takes_part in (False, True) if rank != fault.rank else ():
            # The later a device gets stuck, the further all ranks come: find the last call at which none comes too far.
            low, high = 0, len(fault.program.calls[rank])
            while low < high:
                middle = (low + high + 1) // 2
                reached = state(Stops(device={rank: (middle, takes_part)}))
                low, high = (middle, high) if _is_within(reached, wanted) else (low, middle - 1)
            if state(Stops(device={rank: (low, takes_part)})) == wanted:
                return True
    return False


MAX_HUNG = 8
"""How many of the faulty rank's calls in flight are tried. With one queue only the first can be the one that hangs."""

_State = tuple[tuple[int, int], ...]
"""For each rank: (calls enqueued, calls ended)."""


def _state(job: Simulation, ends_shown: bool) -> _State:
    return tuple(
        (len(calls), sum(call.ended != NEVER for call in calls) if ends_shown else 0)
        for _, calls in sorted(job.calls.items())
    )


def _is_within(state: _State, other: _State) -> bool:
    return all(mine[0] <= its[0] and mine[1] <= its[1] for mine, its in zip(state, other, strict=True))
