"""A collector whose link was cut for longer than reports may be late, and that hears of the ranks again one by one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from otel_fr_collector import timeline
from otel_fr_collector.incidents.what_to_do import FIND_HOST

from otel_fr import semconv
from otel_fr.control.v1.control_pb2 import Command
from tests.support.grpc_calls import LOGS
from tests.support.played_job import Issued, Job
from tests.support.virtual_collector import Monitor, VirtualCollector

OUTAGE = 36.0
HOSTS = ["n0", "n0", "n1", "n1", "n2", "n2"]
STALL, PEER_TIMEOUT = 3.0, 4.0


class Link:
    """Between the ranks and the collector. While it is cut, the first request of each rank waits, as in a connection
    that still tries; the others are lost, as monitors drop them."""

    def __init__(self, collector: VirtualCollector) -> None:
        self._collector = collector
        self._waiting: dict[int, tuple[str, bytes]] = {}
        self.cut: set[int] = set()

    def send(self, method: str, data: bytes, **options: Any) -> bytes:
        rank = _sender(method, data)
        if rank not in self.cut:
            return self._collector.send(method, data, **options)
        if method == LOGS:
            self._waiting.setdefault(rank, (method, data))
        return b""

    def mend(self, ranks: Iterable[int]) -> None:
        """What waited of these ranks arrives, and from now on all."""
        for rank in ranks:
            self.cut.discard(rank)
            if rank in self._waiting:
                self._collector.send(*self._waiting.pop(rank))


def _sender(method: str, data: bytes) -> int:
    if method != LOGS:
        return -1
    resource = ExportLogsServiceRequest.FromString(data).resource_logs[0].resource
    return next(one.value.int_value for one in resource.attributes if one.key == semconv.RANK)


class Training:
    """Steps of a job, in whose collectives its ranks are nearly always. ``hung``: ranks that join no more."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.hung: set[int] = set()
        self._calls: list[Issued] = []
        job.time.every(0.9, self._step)

    def _step(self) -> None:
        if len(self._calls) == len(self.job.ranks):
            for call in self._calls:
                self.job.ranks[call.rank].complete(call, send=False)
            self._calls = []
        not_joining = {call.rank for call in self._calls} | self.hung
        self._calls += [one.issue(self.job.world) for one in self.job.ranks if one.rank not in not_joining]


def start(collector: VirtualCollector) -> tuple[Job, Link, Training, Monitor]:
    link = Link(collector)
    job = Job(link, len(HOSTS), period=1.0, time=collector.time)
    for rank, host in zip(job.ranks, HOSTS, strict=True):
        rank.host, rank.extra = host, {"stall_s": STALL, "peer_s": PEER_TIMEOUT}
    training = Training(job)
    return job, link, training, collector.watch(job)


def _cut(collector: VirtualCollector, link: Link) -> None:
    """One host's latest reports are a little older than the others'."""
    link.cut = {4, 5}
    collector.time.advance(1.5)
    link.cut = set(range(len(HOSTS)))


ORDERS = {
    "host by host": [[0, 1], [2, 3], [4, 5]],
    "one late rank": [[0, 1, 2, 3, 4], [5]],
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_healthy_job_is_not_accused_after_an_outage(order: list[list[int]]) -> None:
    with VirtualCollector() as collector:
        job, link, _, monitor = start(collector)
        with job:
            collector.time.advance(20.0)
            _cut(collector, link)
            collector.time.advance(OUTAGE)
            for ranks in order:
                link.mend(ranks)
                collector.time.advance(9.0)
            collector.time.advance(10.0)
        assert collector.lines() == []
        collector.service.control.close()
        assert monitor.others() == []


def test_a_rank_that_hung_during_an_outage_is_named_when_all_are_heard_again() -> None:
    with VirtualCollector() as collector:
        job, link, training, monitor = start(collector)
        with job:
            collector.time.advance(20.0)
            _cut(collector, link)
            collector.time.advance(OUTAGE / 2)
            training.hung = {3}
            collector.time.advance(OUTAGE / 2)
            link.mend([0, 1, 2, 3])
            collector.time.advance(6.0)
            assert collector.lines() == []
            link.mend([4, 5])
            begun = collector.time.monotonic()
            found = collector.wait_cause()
            assert collector.time.monotonic() - begun < 3.0
            job.ranks[3].extra["stack"] = 'Thread MainThread:\n  File "/job/train.py", line 7, in load'
            collector.wait_cause(lambda one: "train.py:7" in one["summary"])
            later = collector.watch(job, 4).next_command().incident
            training.hung = set()
            assert collector.time.wait_for(lambda: collector.causes()[0]["state"] == "resolved")
        assert {(one["category"], *one["culprit_ranks"]) for one in collector.lines()} == {("missing_rank", 3)}
        collector.service.control.close()
        told = [one.incident for one in map(Command.FromString, monitor.others()) if one.HasField("incident")]
        assert {one.incident_id for one in told} == {found["id"]}
        assert told[0].summary == found["summary"]
        assert later in told
        assert "train.py:7" in later.summary
        assert [one.is_over for one in told] == [False] * (len(told) - 1) + [True]


def test_a_host_that_was_lost_during_an_outage_is_named_after_the_time_to_reconnect() -> None:
    with VirtualCollector() as collector:
        job, link, training, _ = start(collector)
        with job:
            collector.time.advance(20.0)
            _cut(collector, link)
            collector.time.advance(OUTAGE / 2)
            training.hung = {2, 3}
            lost = next(iter(collector.service.runs.by_id.values())).ranks[3].arrived + collector.time.wall()
            lost -= collector.time.monotonic()
            collector.time.advance(OUTAGE / 2)
            link.mend([0, 1, 4, 5])
            begun = collector.time.monotonic()
            found = collector.wait_cause()
        assert collector.time.monotonic() - begun >= timeline.RECONNECT_SECONDS
        assert (found["category"], found["culprit_ranks"]) == ("missing_rank", [2, 3])
        assert (found["stuck_on"], found["what_to_do"]) == ("lost", FIND_HOST)
        assert "n1" in found["summary"]
        heard = datetime.fromtimestamp(lost, tz=timezone.utc).strftime("%H:%M:%S")
        assert all(heard in text for text in (found["summary"], *found["details"]))


def test_a_host_that_was_lost_before_is_not_waited_for() -> None:
    with VirtualCollector() as collector:
        job, link, training, monitor = start(collector)
        with job:
            collector.time.advance(20.0)
            training.hung = link.cut = {2, 3}
            collector.wait_cause()
            link.cut = set(range(len(HOSTS)))
            collector.time.advance(OUTAGE)
            link.mend([0, 1, 4, 5])
            collector.time.advance(3.0)
            job.ranks[4].exit(code=1)
            collector.time.advance(1.0)
        collector.service.control.close()
        commands = [Command.FromString(data) for data in monitor.others()]
        assert any(list(one.peer_failed.ranks) == [4] and one.peer_failed.kind == "ended" for one in commands)
