"""When which spans of an incident are sent: each once, over changes, a restart and the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otel_fr_collector import timeline
from otel_fr_collector.forward.incident_traces import MAX_CHANGES, IncidentTraces
from otel_fr_collector.incidents.incident import RESOLVED, ChangeKind, Incident, IncidentChange
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.run import RunId
from otel_fr_collector.jobs.runs import Runs

from otel_fr.incident_trace import MAX_WAITING
from otel_fr.match import CallState, Category, Group, Signature
from tests.support.evidence import finding
from tests.support.told import apply

RUN = RunId("job-7", 0, "r")
WORLD = 4
STACK = 'Thread MainThread (most recent call last):\n  File "/job/ddp.py", line 40, in load_shard\n'


class Backend:
    """What is given to the forwarder."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.kept: set[bytes] = set()

    def offer(self, _: str, data: bytes, queued: Callable[[], None] | None = None) -> None:
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            self.spans += resource.scope_spans[0].spans
        if queued is not None:
            queued()

    def keep_trace(self, trace: bytes) -> None:
        self.kept.add(trace)

    @property
    def names(self) -> list[str]:
        found = [span.name for span in self.spans]
        assert len({span.span_id for span in self.spans}) == len(found), "a span was sent twice"
        return found


class Notes:
    """What the store keeps of it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def note(self, _: str, values: dict[str, str]) -> None:
        self.values.update(values)

    def notes(self, _: str) -> dict[str, str]:
        return self.values


class Play:
    """One job of four ranks, in which rank 2 is missing, and its incidents."""

    def __init__(self, world: int = WORLD) -> None:
        self.now = 100.0
        self.runs = Runs()
        run = self.runs.get(RUN, 0.0)
        assert run is not None
        self.run, self.group = run, Group("g", "0", "default_pg", tuple(range(world)))
        self.run.resource = {"service.name": "trainer"}
        self.backend, self.notes = Backend(), Notes()
        self.traces = self.restarted()
        self.incident = self.new("one", Category.MISSING_RANK, (2,), (0, 1, 3))

    def restarted(self) -> IncidentTraces:
        store: Any = self.notes
        forwarder: Any = self.backend
        return IncidentTraces(self.runs, forwarder, store, lambda: self.now)

    def new(
        self, number: str, category: Category, culprits: Iterable[int], waiting: Iterable[int], cause: str | None = None
    ) -> Incident:
        found = finding(
            category, key="k", group=self.group, culprit_ranks=tuple(culprits), waiting_ranks=tuple(waiting)
        )
        return Incident(number, RUN, found, ["k"], cause, self.now, 1_000.0, 998.0)

    def report(self, *ranks: int, stack: str = STACK) -> None:
        call = RankCall(
            0, 4, "g", "collective", 5, Signature("all_reduce"), CallState.IN_FLIGHT, site="/job/ddp.py:15 main",
            enqueued_at=self.now - 3.0,
        )  # fmt: skip
        for rank in ranks:
            inflight = [] if rank == 2 else [call._replace(rank=rank)]
            apply(self.run, rank, 1, self.now, inflight=inflight, stack=stack, wall=1_000.0)

    def publish(self, kind: ChangeKind, incident: Incident | None = None, **changed: Any) -> None:
        one = incident or self.incident
        one.finding = dataclasses.replace(one.finding, **changed)
        one.revision += 1
        one.changed = 1_000.0 + one.revision
        if kind is ChangeKind.RESOLVED:
            one.state, one.resolved = RESOLVED, one.changed
        one.data = one.as_data()
        self.traces.publish(IncidentChange(kind, one, one.data))


@pytest.fixture
def play() -> Play:
    return Play()


OPENED = [
    "INCIDENT missing_rank: rank 2",
    "rank 2: not here, load_shard ddp.py:40",
    "waits: all_reduce default_pg [rank 0]",
    "waits: all_reduce default_pg [rank 1]",
    "waits: all_reduce default_pg [rank 3]",
]


def test_an_incident_is_sent_at_once_if_it_is_known_where_its_ranks_are(play: Play) -> None:
    play.report(0, 1, 2, 3)
    play.publish(ChangeKind.OPENED)
    assert play.backend.names == OPENED
    root = play.backend.spans[0]
    assert all(span.parent_span_id == root.span_id for span in play.backend.spans[1:])
    assert root.start_time_unix_nano < 997.0e9
    assert {span.end_time_unix_nano for span in play.backend.spans} == {1_001 * 10**9}
    assert play.backend.kept == {root.trace_id}


def test_it_is_held_back_until_that_is_known(play: Play) -> None:
    play.report(0, 1, 2, 3, stack="")
    play.publish(ChangeKind.OPENED)
    play.traces.step()
    assert play.backend.names == []
    assert play.backend.kept  # and its ranks' spans with it
    play.run.ranks[2].stack, play.run.ranks[2].site = STACK, "/job/ddp.py:40 load_shard"
    for rank in (0, 1, 3):
        play.run.ranks[rank].stack = STACK
    play.publish(ChangeKind.UPDATED)
    assert play.backend.names == OPENED


def test_it_is_held_back_for_two_seconds_only_and_a_culprit_is_placed_later(play: Play) -> None:
    play.report(0, 1, 2, 3, stack="")
    play.publish(ChangeKind.OPENED)
    play.now += timeline.TRACE_HOLD + 0.1
    play.traces.step()
    play.traces.step()
    assert play.backend.names == [OPENED[0], "rank 2: not here", *OPENED[2:]]
    play.run.ranks[2].stack, play.run.ranks[2].site = STACK, "/job/ddp.py:40 load_shard"
    for _ in range(3):
        play.publish(ChangeKind.UPDATED)
    change, culprit = play.backend.spans[5:]
    assert [change.name, culprit.name] == OPENED[:2]
    assert (change.parent_span_id, culprit.parent_span_id) == (play.backend.spans[0].span_id, change.span_id)
    assert play.backend.names


def test_what_is_learned_later_is_below_a_span_of_the_change(play: Play) -> None:
    play.report(0, 1, 2, 3)
    play.publish(ChangeKind.OPENED, waiting_ranks=(0,))
    play.publish(ChangeKind.UPDATED, waiting_ranks=(0, 1, 3))
    play.publish(ChangeKind.UPDATED, category=Category.RANK_DEAD)
    play.publish(ChangeKind.RESOLVED)
    ended = ["INCIDENT rank_dead: rank 2", "RESOLVED rank_dead: rank 2"]
    assert play.backend.names == [*OPENED[:3], OPENED[0], *OPENED[3:], *ended]
    root, change, end = play.backend.spans[0], play.backend.spans[3], play.backend.spans[-1]
    assert {span.parent_span_id for span in play.backend.spans[4:6]} == {change.span_id}
    assert (end.start_time_unix_nano, end.end_time_unix_nano) == (998 * 10**9, 1_004 * 10**9)
    assert end.parent_span_id == root.span_id


def test_one_that_is_over_before_it_was_sent_is_still_whole(play: Play) -> None:
    play.publish(ChangeKind.OPENED)
    play.publish(ChangeKind.RESOLVED)
    assert play.backend.names[0] == OPENED[0]
    assert play.backend.names[-1] == "RESOLVED missing_rank: rank 2"


def test_one_that_opens_again_says_so_once(play: Play) -> None:
    play.report(0, 1, 2, 3)
    for kind in (ChangeKind.OPENED, ChangeKind.RESOLVED, ChangeKind.OPENED, ChangeKind.UPDATED, ChangeKind.RESOLVED):
        play.incident.state = "firing"
        play.publish(kind)
    end = "RESOLVED missing_rank: rank 2"
    assert play.backend.names == [*OPENED, end, OPENED[0], end]


def test_a_consequence_in_the_same_trace_is_not_sent_and_never_before_its_cause(play: Play) -> None:
    play.report(0, 1, 2, 3, stack="")
    consequence = play.new("two", Category.STALLED_COLLECTIVE, (), (0, 1), cause="one")
    play.publish(ChangeKind.OPENED)
    play.publish(ChangeKind.OPENED, consequence)
    assert play.backend.names == []
    play.now += timeline.TRACE_HOLD + 0.1
    play.traces.step()
    play.publish(ChangeKind.RESOLVED, consequence)
    assert play.backend.names[0] == OPENED[0]
    assert not any("CONSEQUENCE" in name or "RESOLVED" in name for name in play.backend.names)


def test_another_cause_in_the_same_trace_is_below_the_first(play: Play) -> None:
    play.report(0, 1, 2, 3)
    play.publish(ChangeKind.OPENED)
    play.publish(ChangeKind.OPENED, play.new("two", Category.RANK_STUCK, (1,), ()))
    root, other = play.backend.spans[0], play.backend.spans[len(OPENED)]
    assert (other.name, other.parent_span_id) == ("INCIDENT rank_stuck: rank 1", root.span_id)
    assert play.backend.names[-1].startswith("rank 1: stuck")


def test_after_a_restart_only_what_is_new_is_sent(play: Play) -> None:
    play.report(0, 1, 2, 3)
    play.publish(ChangeKind.OPENED)
    play.traces = play.restarted()
    play.traces.resume([play.incident])
    play.now += timeline.TRACE_HOLD + 0.1
    play.traces.step()
    play.publish(ChangeKind.UPDATED)
    assert play.backend.names == OPENED
    play.publish(ChangeKind.RESOLVED)
    assert play.backend.names == [*OPENED, "RESOLVED missing_rank: rank 2"]


def test_what_was_held_back_when_the_collector_was_killed_is_sent_by_the_next(play: Play) -> None:
    play.publish(ChangeKind.OPENED)
    play.traces = play.restarted()
    play.traces.resume([play.incident])
    play.now += timeline.TRACE_HOLD + 0.1
    play.traces.step()
    assert play.backend.names[0] == OPENED[0]
    assert play.notes.values == {"one": play.incident.data["trace_id"]}


def test_what_another_collector_continues_is_not_sent(play: Play) -> None:
    play.report(0, 1, 2, 3, stack="")
    play.publish(ChangeKind.OPENED)
    play.traces.forget(RUN)
    play.now += timeline.TRACE_HOLD + 0.1
    play.traces.step()
    play.traces.finish()
    assert play.backend.names == []


def test_a_stop_sends_what_is_held_back(play: Play) -> None:
    play.publish(ChangeKind.OPENED)
    play.traces.finish()
    assert play.backend.names[0] == OPENED[0]


def test_a_trace_is_bounded_however_many_ranks_wait_and_however_often_it_changes() -> None:
    play = Play(10_000)
    play.publish(ChangeKind.OPENED, waiting_ranks=tuple(range(3, 10_000)))
    play.traces.finish()
    assert len(play.backend.names) == 2 + MAX_WAITING
    for number in range(3 * MAX_CHANGES):
        play.publish(ChangeKind.UPDATED, culprit_ranks=tuple(range(number)), waiting_ranks=tuple(range(number, 10_000)))
    play.publish(ChangeKind.RESOLVED)
    assert len(play.backend.names) < 2 + MAX_WAITING + 2 * MAX_CHANGES + 64
    assert play.backend.names[-1].startswith("RESOLVED")
