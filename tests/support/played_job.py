"""Plays a job of N ranks towards a collector, with reports and spans as docs/reference/telemetry.md defines them."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, Protocol

import grpc
from msgspec import convert
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_fr import identity, semconv
from otel_fr.rank_report import RankReport, build
from tests.support.grpc_calls import LOGS, TRACES
from tests.support.otlp_messages import attribute, logs_request, report_record, resource_of, spans_request
from tests.support.times import RealTime, Time
from tests.support.waiting import PATIENCE

STALL = 1.0
"""OTEL_FR_STALL_SECONDS of the played ranks: short, so that a stall takes a second."""


REPORT_SECONDS = 5.0
"""Time limit for a regular report. A collector that stops may never take a report that is on its way."""


class Sends(Protocol):
    """Sends a played job's requests."""

    def send(self, method: str, data: bytes, **options: Any) -> bytes: ...


@dataclass
class Group:
    name: str
    ranks: list[int]
    description: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        self.id = identity.group_id(self.name, self.ranks)


@dataclass
class Issued:
    """One call of one rank."""

    rank: int
    group: Group
    kind: str
    seq: int
    op: str
    record: int
    issued: float
    wall: float
    sizes: list[list[int]]
    dtype: str = "Float"
    reduce_op: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    pair_index: int = 0
    site: tuple[str, int, str] = ("/job/train.py", 42, "step")
    state: str = "scheduled"
    error: str | None = None
    took: float | None = None
    posted: bool = False
    gap: float | None = None

    def report(self, now: float) -> dict[str, Any]:
        call: dict[str, Any] = {
            "g": self.group.id, "k": self.kind, "seq": self.seq, "op_id": self.record, "rec": self.record,
            "i": self.pair_index, "op": self.op, "be": "gloo", "in": self.sizes, "idt": [self.dtype],
            "out": self.sizes, "odt": [self.dtype], "isp": None, "osp": None, "ro": self.reduce_op,
            "root": self.root, "peer": self.peer, "tag": self.tag, "st": self.state, "timeout_ms": 600_000,
            "age_s": now - self.issued, "site": f"{self.site[0]}:{self.site[1]} {self.site[2]}",
        }  # fmt: skip
        if self.posted:
            call["posted"] = True
        if self.gap is not None:
            call["gap_s"] = self.gap
        if self.error:
            call["err"] = self.error
        if self.took is not None:
            call["dur_s"] = self.took
        return call

    def trace(self, run: str) -> bytes:
        if self.kind == "p2p" and self.peer is not None:
            pair = (self.rank, self.peer) if self.op == "send" else (self.peer, self.rank)
            return identity.p2p_trace_id(run, self.group.id, *pair, self.tag or 0, self.pair_index)
        return identity.trace_id(run, self.group.id, self.kind, self.seq)

    def span(self, run: str, now: float) -> Span:
        trace = self.trace(run)
        span = Span(
            trace_id=trace,
            span_id=identity.span_id(trace, self.rank, self.record),
            name=f"{self.op} {self.group.description or self.group.name}",
            kind=Span.SPAN_KIND_INTERNAL,
            start_time_unix_nano=int(self.wall * 1e9),
            end_time_unix_nano=int((self.wall + (self.took if self.took is not None else now - self.issued)) * 1e9),
        )
        if self.error:
            span.status.code = Status.STATUS_CODE_ERROR
        values = {
            semconv.RANK: self.rank,
            semconv.SEQUENCE_ID: self.seq, semconv.OP_ID: self.record, semconv.RECORD_ID: self.record,
            semconv.STATE: self.state, semconv.OPERATION: self.op, semconv.KIND: self.kind, semconv.BACKEND: "gloo",
            semconv.INPUT_SIZES: json.dumps(self.sizes), semconv.OUTPUT_SIZES: json.dumps(self.sizes),
            semconv.INPUT_DTYPES: [self.dtype], semconv.OUTPUT_DTYPES: [self.dtype], semconv.REDUCE_OP: self.reduce_op,
            semconv.ROOT: self.root, semconv.PEER: self.peer, semconv.TAG: self.tag,
            semconv.PAIR_INDEX: self.pair_index if self.kind == "p2p" else None, semconv.TIMEOUT: 600_000,
            semconv.GROUP_ID: self.group.id, semconv.GROUP_NAME: self.group.name,
            semconv.GROUP_DESCRIPTION: self.group.description, semconv.GROUP_SIZE: len(self.group.ranks),
            semconv.CODE_FILE: self.site[0], semconv.CODE_LINE: self.site[1], semconv.CODE_FUNCTION: self.site[2],
            semconv.ERROR_TYPE: self.error,
        }  # fmt: skip
        span.attributes.extend(attribute(key, value) for key, value in values.items() if value is not None)
        return span


@dataclass
class RankPlayer:
    """One rank and its monitor."""

    job: Job
    rank: int
    calls: list[Issued] = field(default_factory=list)
    failed: list[Issued] = field(default_factory=list)
    last: Issued | None = None
    number: int = 0
    records: int = 0
    moved: float = field(init=False)
    counts: dict[str, list[int]] = field(default_factory=dict)
    ended: bool = False
    silent: bool = False
    host: str = "node-0"
    pid: int = field(init=False)
    extra: dict[str, Any] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.moved = self.job.time.monotonic()
        self.pid = 1000 + self.rank

    def issue(self, group: Group, op: str = "all_reduce", sizes: list[list[int]] | None = None, **more: Any) -> Issued:
        with self.lock:
            own = self.counts.setdefault(group.id, [0, 0, 0])
            kind = more.pop("kind", "collective")
            place = 2 if kind == "p2p" else 0
            own[place] += 1
            self.records += 1
            self.moved = self.job.time.monotonic()
            if op == "all_reduce":
                more.setdefault("reduce_op", "sum")
            wall = self.job.time.wall()
            call = Issued(
                self.rank, group, kind, own[place], op, self.records, self.moved, wall, sizes or [[3, 4]], **more
            )
            self.calls.append(call)
            self.last = call
            return call

    def complete(self, call: Issued, send: bool = True) -> Span:
        with self.lock:
            self.calls.remove(call)
            self.moved = self.job.time.monotonic()
            call.state, call.took = "completed", self.moved - call.issued
            if call.kind == "collective":
                self.counts[call.group.id][1] = max(self.counts[call.group.id][1], call.seq)
            span = call.span(self.job.run, self.moved)
        if send:
            self.send_spans([span])
        return span

    def fail(self, call: Issued, error: str = "timeout") -> None:
        with self.lock:
            self.calls.remove(call)
            self.moved = self.job.time.monotonic()
            call.state, call.error, call.took = "failed", error, self.moved - call.issued
            self.failed.append(call)
        self.send_spans([call.span(self.job.run, self.moved)])

    def report(self, **more: Any) -> dict[str, Any]:
        with self.lock:
            now = self.job.time.monotonic()
            self.number += 1
            groups = [
                {"id": group.id, "name": group.name, "desc": group.description,
                 "ranks": identity.encode_ranks(group.ranks), "backend": "gloo", "enq": own[0], "done": own[1],
                 "p2p": own[2], "issued": own[0], "ended": own[1], "gone": False}
                for group in self.job.groups.values() if (own := self.counts.get(group.id)) is not None
            ]  # fmt: skip
            body: dict[str, Any] = {
                "v": 1, "rank": self.rank, "n": self.number, "stall_s": STALL, "groups": groups,
                "inflight": [call.report(now) for call in self.calls], "inflight_more": 0,
                "failed": [call.report(now) for call in self.failed], "idle_s": now - self.moved,
            }  # fmt: skip
            if self.last is not None:
                body["last"] = self.last.report(now)
            body.update(self.extra)
            body.update(more)
            return body

    def send_report(self, event: str = semconv.EVENT_PROGRESS, seconds: float = PATIENCE, **more: Any) -> None:
        with self.lock:
            body = build(convert(self.report(**more), RankReport))
            record = report_record(body, event, self.job.time.wall())
            if "file" in more:
                record.attributes.append(attribute(semconv.FILE_PATH, more["file"]))
            self.job.collector.send(LOGS, logs_request((self.resource(), record)), timeout=seconds)

    def ask(self, action: str, description: str = "") -> None:
        """Send a workload control request."""
        values = {semconv.WORKLOAD_ACTION: action, semconv.WORKLOAD_DESCRIPTION: description}
        record = LogRecord(
            event_name=semconv.EVENT_WORKLOAD_CONTROL, attributes=[attribute(*item) for item in values.items()]
        )
        self.job.collector.send(LOGS, logs_request((self.resource(), record)))

    def send_spans(self, spans: list[Span]) -> bytes:
        data = self.spans_request(spans)
        self.job.collector.send(TRACES, data)
        return data

    def spans_request(self, spans: list[Span]) -> bytes:
        return spans_request(self.resource(), spans)

    def exit(self, code: int = 0, signal: int = 0, clean: bool = False, **more: Any) -> None:
        with self.lock:
            self.ended = True
            exit_ = {"code": code, "signal": signal, "clean": clean, "known": True}
            self.send_report(semconv.EVENT_EXITED, exit=exit_, **more)

    def resource(self) -> Resource:
        return resource_of({
            semconv.SERVICE_NAME: "trainer", semconv.HOST_NAME: self.host, semconv.PROCESS_PID: self.pid,
            semconv.RANK: self.rank, semconv.LOCAL_RANK: self.rank, semconv.WORLD_SIZE: len(self.job.ranks),
            semconv.JOB_ID: self.job.id, semconv.JOB_ATTEMPT: self.job.attempt, semconv.RUN_ID: self.job.run,
        })  # fmt: skip


class Job:
    """A job with ranks that report every ``period`` seconds of ``time``, as monitors do."""

    def __init__(
        self,
        collector: Sends,
        world: int,
        job_id: str = "job-7",
        attempt: int = 0,
        period: float = 0.1,
        time: Time | None = None,
    ) -> None:
        self.collector, self.id, self.attempt, self.period = collector, job_id, attempt, period
        self.time = time or RealTime()
        self.run = identity.run_id(job_id, attempt, f"nonce-{monotonic_ns()}")
        self.groups: dict[str, Group] = {}
        self.ranks = [RankPlayer(self, rank) for rank in range(world)]
        self.world = self.group("0", list(range(world)), "default_pg")
        self._stop: Callable[[], None] = lambda: None

    def group(self, name: str, ranks: list[int], description: str = "") -> Group:
        group = Group(name, ranks, description)
        self.groups[group.id] = group
        return group

    def __enter__(self) -> Job:
        self._stop = self.time.every(self.period, self._report)
        return self

    def __exit__(self, *_: object) -> None:
        self.quiet()

    def quiet(self) -> None:
        """End the regular reports."""
        self._stop()

    def _report(self) -> None:
        for rank in self.ranks:
            if not rank.ended and not rank.silent:
                with contextlib.suppress(grpc.RpcError, ValueError):  # the collector may have been stopped
                    rank.send_report(seconds=REPORT_SECONDS)

    @contextlib.contextmanager
    def at_once(self, ranks: Iterable[int]) -> Iterator[None]:
        """Send no report of these ranks during the block, so that no report shows what only some have done."""
        with contextlib.ExitStack() as stack:
            for rank in ranks:
                stack.enter_context(self.ranks[rank].lock)
            yield

    def step(self, group: Group | None = None, op: str = "all_reduce", **more: Any) -> None:
        """Make one collective that all members join and complete."""
        group = group or self.world
        with self.at_once(group.ranks):
            calls = [self.ranks[rank].issue(group, op, **more) for rank in group.ranks]
        for call in calls:
            self.ranks[call.rank].complete(call)

    def skip(self, culprit: int, group: Group | None = None) -> list[Issued]:
        """Make one collective that all members but one join."""
        group = group or self.world
        with self.at_once(group.ranks):
            return [self.ranks[rank].issue(group) for rank in group.ranks if rank != culprit]

    def hang(self, culprit: int) -> list[Issued]:
        """Make a collective that all ranks complete, and then one that all but one join."""
        self.step()
        return self.skip(culprit)

    def go_on(self, waiting: list[Issued]) -> None:
        """Let the absent members join, and all members complete."""
        group = waiting[0].group
        absent = set(group.ranks) - {call.rank for call in waiting}
        with self.at_once(absent):
            calls = [*waiting, *(self.ranks[rank].issue(group) for rank in sorted(absent))]
        for call in calls:
            self.ranks[call.rank].complete(call)

    def all_reported(self) -> None:
        """Let time pass until every live rank has reported twice more, so that no report is on its way."""
        before = [rank.number for rank in self.ranks]
        live = [i for i, rank in enumerate(self.ranks) if not rank.ended and not rank.silent]
        assert self.time.wait_for(lambda: all(self.ranks[i].number >= before[i] + 2 for i in live))
