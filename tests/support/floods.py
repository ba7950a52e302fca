"""Valid telemetry in amounts that no sane client sends: it fills every limit of the collector, or wakes its judge.

Each function makes one request. Equal arguments make equal requests, other numbers make other jobs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_fr import semconv
from tests.support import hostile
from tests.support.otlp_messages import logs_request, rank_resource, report_record, spans_request

_MARK = b"#0000#"
"""Placeholder for a number. The request is made only once, because that takes seconds."""
DEAD_JOBS = 300
"""Jobs in one request of `dead_jobs`."""


class Sender(NamedTuple):
    """One rank of a flood."""

    job: str
    rank: int
    world: int

    def resource(self) -> Resource:
        return rank_resource(self.rank, self.world, self.job, f"run-{self.job}")


def reports(bodies: Iterable[tuple[Sender, dict[str, Any]]]) -> bytes:
    """Return a request of rank reports, each with its own resource."""
    entries = []
    for sender, body in bodies:
        full = {"v": 1, "rank": sender.rank, "n": 1, "stall_s": 1.0, "groups": [], **body}
        event = semconv.EVENT_EXITED if "exit" in body else semconv.EVENT_PROGRESS
        entries.append((sender.resource(), report_record(full, event)))
    return logs_request(*entries)


def group(name: str, ranks: str, enqueued: int = 5, completed: int = 4) -> dict[str, Any]:
    return {
        "id": name, "name": name, "desc": "d", "ranks": ranks, "backend": "gloo", "enq": enqueued, "done": completed,
        "p2p": 0, "issued": enqueued, "ended": completed, "gone": False,
    }  # fmt: skip


def call(name: str = "g0", number: int = 5) -> dict[str, Any]:
    """Return a call that has been in flight for 30 s."""
    return {
        "g": name, "k": "collective", "seq": number, "op_id": number, "rec": number, "i": 0, "op": "all_reduce",
        "be": "gloo", "in": [[3]], "idt": ["Float"], "out": [[3]], "odt": ["Float"], "ro": "sum", "st": "scheduled",
        "timeout_ms": 600_000, "age_s": 30.0, "site": "train.py:1 step",
    }  # fmt: skip


def dead_jobs(number: int, tenant: str) -> bytes:
    """New jobs of two ranks: one was killed, the other waits for it."""
    bodies: list[tuple[Sender, dict[str, Any]]] = []
    for index in range(DEAD_JOBS):
        job = f"{tenant}{number}-{index}"
        waits = {"groups": [group("g0", "0-1")], "inflight": [call()], "idle_s": 30.0}
        killed = {"groups": [group("g0", "0-1", 4)], "exit": {"code": 1, "signal": 9, "clean": False, "known": True}}
        bodies += [(Sender(job, 0, 2), waits), (Sender(job, 1, 2), killed)]
    return reports(bodies)


def stalled_job(number: int, tenant: str) -> bytes:
    """A job that waits in three calls. Each rank has its own stacks, sizes and call sites."""
    return _numbered(_stalled_job(tenant), number)


def large_shapes(number: int, tenant: str) -> bytes:
    """Spans of one rank, of collectives that no other rank joins, each of four tensors with 60 dimensions."""
    return _numbered(_large_shapes(tenant), number)


def _numbered(data: bytes, number: int) -> bytes:
    return data.replace(_MARK, b"#%04d#" % number)


@functools.cache
def _stalled_job(tenant: str, ranks: int = 1_000) -> bytes:
    mark = _MARK.decode()
    bodies: list[tuple[Sender, dict[str, Any]]] = []
    for rank in range(ranks):
        own = {"in": [[rank + 1]] * 50, "out": [[rank]] * 50, "site": f"{mark}-{rank}.py:{rank} " + "f" * 400}
        calls = [{**call(), **own}] * 3
        body = {"groups": [group("g0", f"0-{ranks - 1}")], "inflight": calls, "stack": f"x{rank}\n" * 1_500}
        bodies.append((Sender(f"{tenant}stalled-{mark}", rank, ranks), {**body, "idle_s": 30.0}))
    return reports(bodies)


def many_groups(number: int, tenant: str, ranks: int = 400, groups: int = 80) -> bytes:
    """A job of many ranks in many groups. Each group has most of the ranks."""
    names = [(f"{number}-{index}", f"0-{ranks - 1 - index}") for index in range(groups)]
    bodies = [
        (Sender(f"{tenant}groups-{number}", rank, ranks), {"groups": [group(*name) for name in names]})
        for rank in range(ranks)
    ]
    return reports(bodies)


def calls_in_flight(number: int, tenant: str, count: int = 20_000) -> bytes:
    """Spans of one rank, of ``count`` collectives that no other rank joins, each with its own sizes."""
    sender = Sender(f"{tenant}spans-{number % 8}", 0, 64)
    more: dict[str, Any] = {semconv.STATE: "scheduled"}
    sizes: Iterable[dict[str, Any]] = ({semconv.INPUT_SIZES: f"[[{index}, {number}]]"} for index in range(count))
    spans = [hostile.span(index, f"g{number}", **more, **own) for index, own in enumerate(sizes)]
    return spans_request(sender.resource(), spans)


@functools.cache
def _large_shapes(tenant: str, count: int = 8_000) -> bytes:
    mark = _MARK.decode()
    sender = Sender(f"{tenant}shapes-{mark}", 0, 64)
    tail = ",".join(map(str, range(1_000, 1_059)))
    more: dict[str, Any] = {semconv.STATE: "scheduled"}
    sizes: Iterable[dict[str, Any]] = (
        {semconv.INPUT_SIZES: f"[{','.join([f'[{index},{tail}]'] * 4)}]"} for index in range(count)
    )
    spans = [hostile.span(index, f"g{mark}", **more, **own) for index, own in enumerate(sizes)]
    return spans_request(sender.resource(), spans)
