"""Executes programs as a collective library does: hosts that enqueue calls, devices that execute them, in seconds.

A collective completes once the devices of all members have reached it, and a message once both ends have. A device
executes either the calls of each group in order, or all calls of its rank in order.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from otel_fr.match import CallState
from tests.support.random_jobs.programs import Op, Program

Place = tuple[str, int] | tuple[str, int, int, int, int]
"""(group, number), or (group, source, destination, tag, number within this pair and tag)."""

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class SimulatedCall:
    """A call that its rank has enqueued. Times are seconds since the start of the job.

    Attributes:
        record: position among its rank's calls. number: in its group (messages have numbers of their own).
        ended: `NEVER` while in flight.
    """

    rank: int
    op: Op
    place: Place
    record: int
    number: int
    enqueued: float
    gap: float
    ended: float = NEVER
    state: CallState = CallState.IN_FLIGHT
    error: str | None = None

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part in the call."""
        new = self.op.signature.new_group
        return self.place[1:3] if len(self.place) == 5 else self.op.group.ranks if new is None else new.ranks

    @property
    def pair_index(self) -> int:
        return self.place[4] if len(self.place) == 5 else 0


@dataclass(slots=True, kw_only=True)
class Behaviour:
    """How hosts, devices and the collective library behave.

    Attributes:
        depth: calls a host may have in flight; 1: it waits for each.
        one_queue: a device executes all of its rank's calls in order; else the calls of each group.
        on_mismatch: the effect of calls that do not fit together.
    """

    depth: int
    one_queue: bool
    on_mismatch: str = "hang"


@dataclass(slots=True, kw_only=True)
class Stops:
    """Where single ranks stop.

    Attributes:
        host: rank -> the index of the call before which its Python stops.
        killed: the ranks of ``host`` whose device stops with the host.
        inside: the ranks of ``host`` that stop right after they enqueued the call before the index.
        device: rank -> (record, takes_part): the device completes no call from that record on. With ``takes_part``
            it has done its part of the first of these calls, so the other ranks complete it.
        away: rank -> (index, seconds): the host pauses for so long before the call.
        hung: collectives and messages that never complete, although all members reach them.
    """

    host: dict[int, int] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    device: dict[int, tuple[int, bool]] = field(default_factory=dict)
    away: dict[int, tuple[int, float]] = field(default_factory=dict)
    hung: frozenset[Place] = frozenset()


class Simulation:
    """One execution of a program. After `run`, `calls` has what each rank enqueued."""

    def __init__(self, program: Program, behaviour: Behaviour, rng: random.Random, stops: Stops | None = None) -> None:
        self.program = program
        self.behaviour = behaviour
        self.stops = stops or Stops()
        self.calls: dict[int, list[SimulatedCall]] = {rank: [] for rank in program.calls}
        self.stopped_at: dict[int, float] = {}
        """Rank -> when its host finished its program, or stopped."""
        self.left_at: dict[int, float] = {}
        """Rank -> when its host paused."""
        self.timeout = 600.0
        """Seconds until a call that does not end fails. Ranks are judged, or fail, no later."""
        self.clock = 0.0
        self._rng = rng
        self._pace = {rank: rng.uniform(0.002, 0.01) for rank in program.calls}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._open: dict[int, int] = dict.fromkeys(program.calls, 0)
        self._queues: dict[tuple[int, str], deque[SimulatedCall]] = {}
        self._arrived: dict[Place, dict[int, SimulatedCall]] = {}
        self._blocked: set[int] = set()
        self._heap: list[tuple[float, int]] = []
        self._last_end: dict[int, float] = dict.fromkeys(program.calls, 0.0)

    def run(self) -> None:
        """Run the ranks until nothing moves."""
        self._run([(self._rng.uniform(0, 0.05), rank) for rank in self.program.calls])

    def resume(self, program: Program, stops: Stops, starts: Mapping[int, float]) -> None:
        """Continue with another program, after the calls in flight failed and ranks caught the failures.

        Args:
            program, stops: count calls from 0 again. starts: rank -> when it continues.
        """
        made = {rank: [call.op for call in calls] for rank, calls in self.calls.items()}
        later = {rank: [*made[rank], *program.calls[rank]] for rank in starts}
        groups = {group.id: group for group in (*self.program.groups, *program.groups)}
        self.program = replace(self.program, groups=[*groups.values()], calls={**made, **later})
        self.stops = replace(stops, host={rank: len(made[rank]) + at for rank, at in stops.host.items()})
        self.stopped_at, self._blocked = {}, set()
        self._open, self._queues = dict.fromkeys(self.calls, 0), {}
        for rank, at in starts.items():
            self._last_end[rank] = max((call.ended for call in self.calls[rank]), default=at)
        self._run([(at, rank) for rank, at in starts.items()])

    def _run(self, heap: list[tuple[float, int]]) -> None:
        self._heap = heap
        heapq.heapify(self._heap)
        while self._heap:
            now, rank = heapq.heappop(self._heap)
            self.clock = max(self.clock, now)
            self._host(rank, now)

    def _host(self, rank: int, now: float) -> None:
        if rank in self.stopped_at:
            return
        mine, program = self.calls[rank], self.program.calls[rank]
        at = len(mine)
        stop = self.stops.host.get(rank, len(program))
        if at == stop and rank in self.stops.inside:
            self._stop(rank, now)
            return
        waits_for_all = at > 0 and mine[-1].op.host_waits
        if self._open[rank] >= (1 if waits_for_all or at >= stop else self.behaviour.depth):
            if at >= stop and rank in self.stops.host:
                self._stop(rank, now)
            else:
                self._blocked.add(rank)
            return
        if at >= min(stop, len(program)):
            self._stop(rank, now)
            return
        index, seconds = self.stops.away.get(rank, (-1, 0.0))
        if at == index and rank not in self.left_at:
            self.left_at[rank] = now
            heapq.heappush(self._heap, (now + seconds, rank))
            return
        self._enqueue(rank, program[at], now)
        pause = self._pace[rank] * self._rng.expovariate(1.0)
        heapq.heappush(self._heap, (now + 0.0001 + pause, rank))

    def _stop(self, rank: int, now: float) -> None:
        self.stopped_at[rank] = now

    def _enqueue(self, rank: int, op: Op, now: float) -> None:
        call = self.record(rank, op, now)
        self._open[rank] += 1
        queue = self._queue_of(call)
        queue.append(call)
        if len(queue) == 1:
            self._turn_to(queue, now)

    def record(self, rank: int, op: Op, now: float) -> SimulatedCall:
        """Let the rank enqueue a call. The caller decides whether the call ends."""
        number, place = self._place(rank, op)
        call = SimulatedCall(rank, op, place, len(self.calls[rank]), number, now, now - self._last_end[rank])
        self.calls[rank].append(call)
        return call

    def _place(self, rank: int, op: Op) -> tuple[int, Place]:
        if op.signature.new_group is not None:
            return (number := self._next(rank, op.group.id, "group")), (f"{op.group.id} group", number)
        if op.peer is None:
            return (number := self._next(rank, op.group.id)), (op.group.id, number)
        pair = (rank, op.peer) if op.signature.operation == "send" else (op.peer, rank)
        tag = op.signature.tag or 0
        index = self._next(rank, op.group.id, op.signature.operation, pair, tag) - 1
        return self._next(rank, op.group.id, "p2p"), (op.group.id, *pair, tag, index)

    def _next(self, *key: object) -> int:
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        return number

    def _turn_to(self, queue: deque[SimulatedCall], now: float) -> None:
        """Let the device begin the first call of a queue. If that completes calls, the queues behind them move on."""
        todo = [queue]
        while todo:
            queue = todo.pop()
            if not queue:
                continue
            call = queue[0]
            record, takes_part = self.stops.device.get(call.rank, (1 << 60, False))
            if call.record > record or (call.record == record and not takes_part):
                continue
            if call.rank in self.stopped_at and call.rank in self.stops.killed:
                continue
            there = self._arrived.setdefault(call.place, {})
            there[call.rank] = call
            for ended in self._ends(call, there, now):
                if ended.record == self.stops.device.get(ended.rank, (-1, False))[0]:
                    continue
                ended.ended = now + self._rng.random() * 0.0005
                self._last_end[ended.rank] = ended.ended
                self._open[ended.rank] -= 1
                own = self._queue_of(ended)
                own.popleft()
                todo.append(own)
                if ended.rank in self._blocked:
                    self._blocked.discard(ended.rank)
                    heapq.heappush(self._heap, (ended.ended, ended.rank))

    def _queue_of(self, call: SimulatedCall) -> deque[SimulatedCall]:
        name = "" if self.behaviour.one_queue else f"{call.op.group.id} {call.place[1:3] if call.op.is_message else ''}"
        return self._queues.setdefault((call.rank, name), deque())

    def _ends(self, call: SimulatedCall, there: dict[int, SimulatedCall], now: float) -> list[SimulatedCall]:
        """Return the calls that end with the call's instance; none if a member has not reached it."""
        if len(there) < len(call.members) or call.place in self.stops.hung:
            return []
        dead = self.stops.killed.intersection(self.stopped_at)
        if dead.intersection(there):
            return []
        ended = list(there.values())
        fits = len({own.op.token for own in ended}) == 1
        if not fits and self.behaviour.on_mismatch == "hang":
            return []
        failed = not fits and self.behaviour.on_mismatch == "fail"
        for own in ended:
            own.state = CallState.FAILED if failed else CallState.COMPLETED
            own.error = "error" if failed else None
        if failed:  # each rank's call raises an exception
            for own in ended:
                self.stopped_at.setdefault(own.rank, now)
        return ended
