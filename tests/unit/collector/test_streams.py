"""What the collector concludes does not depend on how the requests came: order, repetition, losses, pauses, clocks."""

from __future__ import annotations

import asyncio
import functools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otel_fr_collector.incidents import judge as judge_module
from otel_fr_collector.otlp.signals import LOGS, TRACES
from otel_fr_collector.service import Service

from otel_fr import identity, semconv
from tests.support.in_place import InPlace
from tests.support.otlp_messages import logs_request, order_attributes, rank_resource, report_record, spans_request
from tests.support.played_job import Group, Issued
from tests.support.services import Clock, new_service
from tests.support.waiting import PATIENCE

WORLD = 4
ALL = Group("0", list(range(WORLD)), "default_pg")
PAIR = Group("1", [1, 3], "pair")
Request = tuple[str, bytes]


def spans_of(rank: int, calls: list[Issued]) -> Request:
    spans = [call.span("0123456789abcdef", 0.0) for call in calls]
    for span in spans:
        order_attributes(span, [semconv.SEQUENCE_ID, semconv.RECORD_ID])
    return TRACES, spans_request(rank_resource(rank), spans)


def report_of(rank: int, number: int, **more: Any) -> Request:
    groups = [
        {"id": group.id, "name": group.name, "desc": group.description, "ranks": identity.encode_ranks(group.ranks)}
        for group in (ALL, PAIR) if rank in group.ranks
    ]  # fmt: skip
    body = {"v": 1, "rank": rank, "n": number, "stall_s": 5.0, "groups": groups, "inflight": [], "failed": [], **more}
    return LOGS, logs_request((rank_resource(rank), report_record(body)))


def job(steps: int, batch: int, odd: tuple[int, int] | None, order: random.Random) -> list[list[Request]]:
    """Each rank's requests in order; ``odd``: (rank, step) that brings another size to a collective of all."""
    streams: list[list[Request]] = []
    for rank in range(WORLD):
        calls: list[Issued] = []
        numbers: dict[str, int] = {}
        for step in range(steps):
            for group, op in ((ALL, "all_reduce"), (PAIR, "broadcast"), (ALL, "all_gather")):
                if rank in group.ranks:
                    size = 5 if odd == (rank, step) and op == "all_reduce" else 3
                    number = numbers[group.id] = numbers.get(group.id, 0) + 1
                    more: dict[str, Any] = {"reduce_op": "sum"} if op == "all_reduce" else {}
                    more.update({"root": 1} if op == "broadcast" else {})
                    calls.append(
                        Issued(rank, group, "collective", number, op, len(calls), 0.0, 1.7e9 + step, [[size]],
                               state="completed", took=0.01, **more)
                    )  # fmt: skip
        pieces = [calls[at : at + batch] for at in range(0, len(calls), batch)]
        reports = order.randrange(len(pieces) + 1)
        stream = [spans_of(rank, piece) for piece in pieces]
        stream.insert(reports, report_of(rank, 1))
        streams.append(stream)
    return streams


def concluded(requests: list[Request]) -> list[tuple[object, ...]]:
    """What is published once all of that has arrived and settled."""

    async def feed() -> Service:
        clock = Clock()
        service = new_service(clock)
        for signal, data in requests:
            await service.take(signal, data)
            service.step()
            clock.advance(0.001)
        for _ in range(4):
            clock.advance(1.0)
            service.step()
        return service

    incidents = [one.data for one in asyncio.run(feed()).book.known()]
    names = ("id", "category", "culprit_ranks", "waiting_ranks", "sequence_id", "operation", "field", "values")
    return [tuple(str(data[name]) for name in names) for data in map(dict, incidents)]


jobs = st.tuples(st.integers(1, 6), st.integers(1, 5), st.randoms(use_true_random=False))


def mixed(streams: list[list[Request]], order: random.Random) -> list[Request]:
    """All requests in any order, some of them twice."""
    requests = [request for stream in streams for request in stream]
    requests += order.sample(requests, order.randrange(len(requests) + 1))
    order.shuffle(requests)
    return requests


def in_order(streams: list[list[Request]]) -> list[Request]:
    longest = max(map(len, streams))
    return [stream[at] for at in range(longest) for stream in streams if at < len(stream)]


@given(jobs, st.integers(0, WORLD - 1), st.integers(0, 5))
def test_a_fault_is_reported_alike_in_any_order_of_requests(
    drawn: tuple[int, int, random.Random], rank: int, step: int
) -> None:
    steps, batch, order = drawn
    streams = job(steps, batch, (rank, step % steps), order)
    expected = concluded(in_order(streams))
    assert [one[1:3] for one in expected] == [("size_mismatch", f"[{rank}]")]
    assert concluded(mixed(streams, order)) == expected


@given(jobs, st.floats(0, 1))
def test_a_healthy_stream_is_no_fault_in_any_order_and_with_any_loss(
    drawn: tuple[int, int, random.Random], loss: float
) -> None:
    steps, batch, order = drawn
    requests = mixed(job(steps, batch, None, order), order)
    assert concluded([request for request in requests if order.random() >= loss]) == []


WAIT: dict[str, Any] = {
    "g": ALL.id, "k": "collective", "seq": 9, "rec": 40, "op": "all_reduce", "in": [[3]], "idt": ["Float"],
    "out": [[3]], "odt": ["Float"], "ro": "sum", "st": "scheduled", "site": "train.py:42 step",
}  # fmt: skip


class Aside:
    """A service that judges every run aside, and has the verdict after `settle`."""

    def __init__(self) -> None:
        self.clock, self.go = Clock(), asyncio.Event()
        self.service = new_service(self.clock)

    async def report_all(self, number: int, age: float, culprit: int = 2) -> None:
        """All but the culprit wait."""
        for rank in range(WORLD):
            inflight = [] if rank == culprit else [{**WAIT, "age_s": age}]
            await self.service.take(*report_of(rank, number, inflight=inflight, idle_s=age))

    async def begin(self) -> None:
        """The run is being judged."""
        await self.report_all(1, 4.4)
        self.step()

    def step(self) -> None:
        self.service.step()
        assert len(self.service.judge._aside) == 1

    async def settle(self) -> None:
        self.go.set()
        while self.service.judge._aside:
            await asyncio.sleep(0.001)

    def culprits(self) -> list[list[int]]:
        return [one.data["culprit_ranks"] for one in self.service.book.known()]


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> Aside:
    made = Aside()
    monkeypatch.setattr(judge_module, "MAX_SIZE_ON_LOOP", 0)
    monkeypatch.setattr(judge_module, "Aside", functools.partial(InPlace, go=made.go))
    return made


def test_the_intake_goes_on_while_a_big_run_is_judged(aside: Aside) -> None:
    async def scene() -> None:
        await aside.begin()
        aside.clock.advance(1.0)
        await aside.report_all(2, 5.4)  # it is taken in, and judged only when the first verdict is there
        aside.step()
        assert aside.culprits() == []
        await aside.settle()

    asyncio.run(scene())
    assert aside.culprits() == [[2]]


def test_a_wait_that_ends_while_it_is_judged_is_not_reported(aside: Aside) -> None:
    async def scene() -> None:
        await aside.begin()
        for rank in range(WORLD):
            own = [Issued(rank, ALL, "collective", 9, "all_reduce", 40, 0.0, 1.7e9, [[3]], reduce_op="sum", took=4.5)]
            own[0].state = "completed"
            await aside.service.take(*spans_of(rank, own))
        await aside.settle()

    asyncio.run(scene())
    assert aside.culprits() == []


def test_a_wait_is_judged_once_the_rank_that_it_lacks_has_said_where_it_stands(aside: Aside) -> None:
    """The accused rank's last report is older than the wait."""

    async def scene() -> None:
        await aside.service.take(*report_of(2, 1))
        aside.clock.advance(2.0)
        for rank in (0, 1, 3):
            await aside.service.take(*report_of(rank, 1, inflight=[{**WAIT, "age_s": 4.4}]))
        aside.service.step()
        assert not aside.service.judge._aside
        aside.clock.advance(0.2)
        await aside.service.take(*report_of(2, 2, idle_s=4.6))
        aside.step()
        await aside.settle()

    asyncio.run(scene())
    assert aside.culprits() == [[2]]


def test_a_verdict_that_is_not_there_when_the_collector_stops_is_found_at_once(aside: Aside) -> None:
    async def scene() -> None:
        await aside.begin()
        aside.go.set()
        await aside.service.finish(PATIENCE)

    asyncio.run(scene())
    assert aside.culprits() == [[2]]


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.floats(-1e6, 1e6))
def test_steps_of_wall_clocks_make_and_lose_no_verdict(ranks: list[float], own: float) -> None:
    """Neither the senders' clocks nor the collector's own wall clock decide anything: waits come as durations."""

    async def scene(fault: bool) -> list[object]:
        clock = Clock()
        service, began = new_service(clock), clock.now
        for number in range(1, 10):
            age = clock.now - began
            culprit = 2 if fault else -1
            for rank in range(WORLD):
                done = Issued(rank, ALL, "collective", number, "all_reduce", number, 0.0, clock.wall, [[3]])
                done.state, done.took, done.reduce_op = "completed", 0.01, "sum"
                if number >= 5 and rank < 3:
                    done.wall += ranks[rank]
                if number < 9:
                    await service.take(*spans_of(rank, [done]))
                waits = fault and rank != culprit
                inflight = [{**WAIT, "age_s": age}] if waits else []
                await service.take(*report_of(rank, number, inflight=inflight))
            if number == 5:
                clock.wall += own
            clock.advance(0.75)
            service.step()
        return [(one.data["category"], one.data["culprit_ranks"]) for one in service.book.known()]

    assert asyncio.run(scene(fault=False)) == []
    assert asyncio.run(scene(fault=True)) == [("missing_rank", [2])]
