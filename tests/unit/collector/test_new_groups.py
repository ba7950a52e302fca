"""How process groups are created and destroyed, from the monitor's span and report to what the collector keeps."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from otel_fr_collector.incidents.triggers import look_at_waits
from otel_fr_collector.jobs import groups, rank_reports
from otel_fr_collector.jobs.calls import Interner, RankCall, SpanCall, expand
from otel_fr_collector.jobs.groups import GroupState
from otel_fr_collector.jobs.incomplete import IncompleteInstance
from otel_fr_collector.jobs.ranks import DESTROYED, MAX_DESTROYED, RankState
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.jobs.snapshot import snapshot
from otel_fr_collector.jobs.span_reader import SpanReader

from otel_fr import identity, rank_report
from otel_fr.match import CallState, Group
from otel_fr.match.facts.instances import InstanceKey
from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.telemetry.report_builder import reported_call, reported_group
from otel_fr.monitor.telemetry.span_builder import SpanBuilder
from otel_fr.rank_report import RankReport
from otel_fr.ring import KIND_GROUP, GroupDef, GroupProgress, NewGroup, Record, RecordState, SiteDef
from tests.support.rings import FRAME, signature
from tests.support.told import new_run

WORLD = GroupDef("w", "0", "default_pg", (0, 1, 2, 3), "gloo", 0)
PAIR = NewGroup("3", "tp", (0, 2))


def created(new: NewGroup = PAIR, state: RecordState = RecordState.COMPLETED) -> Record:
    return Record(
        record_id=7, issued_ns=1_000, waited_ns=None, ended_ns=None if state is RecordState.IN_FLIGHT else 5_000,
        state=state, coll_seq=3, p2p_seq=0, op_id=0, pair_index=0, kind=KIND_GROUP, flags=0, timeout_ms=60_000,
        thread="MainThread", group=WORLD, signature=signature("new_group", (), backend="", new_group=new),
        site=SiteDef((FRAME,)),
    )  # fmt: skip


def from_span(record: Record, interner: Interner, rank: int = 0) -> SpanCall:
    data = SpanBuilder(identity.run_id("job", 0, "n"), rank, 10**18).encode(record)
    invalid: list[str] = []
    (call,) = SpanReader(interner).read([ScopeSpans.FromString(data).spans[0].SerializeToString()], invalid)
    assert invalid == []
    return call


def from_report(record: Record, interner: Interner, rank: int = 0) -> RankCall:
    report = RankReport(
        rank=rank, number=1, stall_s=5.0, groups=(), in_flight=(reported_call(Tracked(record, None), 10_000),),
        in_flight_more=0, failed=(), idle_s=None,
    )  # fmt: skip
    text = rank_report.build(report)
    assert json.loads(text)["inflight"][0]["ngr"] == identity.encode_ranks(PAIR.ranks)
    (call,) = rank_reports.read(rank_report.parse(text), interner, now=100.0, wall=5e9).inflight
    return call


@pytest.mark.parametrize("awaits_all", [False, True])
def test_it_reads_the_same_from_its_span_and_from_its_report(awaits_all: bool) -> None:
    interner = Interner()
    new = NewGroup("3", "tp", (0, 2), awaits_all)
    span = expand((0, *from_span(created(new), interner), None))
    report = from_report(created(new, RecordState.IN_FLIGHT), interner)
    assert span.signature is report.signature
    assert span.signature.new_group == NewGroup("3", "tp", (0, 2), awaits_all)
    assert (span.stream, span.sequence_id) == (report.stream, report.sequence_id) == ("group", 3)
    assert report.state is CallState.IN_FLIGHT


def test_it_is_complete_once_the_new_groups_members_have_completed_it() -> None:
    interner, state = Interner(), GroupState(Group("w", "0", "default_pg", (0, 1, 2, 3)), 4)
    for rank in (0, 2):
        assert not state.add(expand((rank, *from_span(created(), interner, rank), None)))
    assert not state.incomplete
    assert state.call_count == 0


def test_other_members_under_one_number_disagree() -> None:
    interner, state = Interner(), GroupState(Group("w", "0", "default_pg", (0, 1, 2, 3)), 4)
    assert not state.add(expand((0, *from_span(created(), interner), None)))
    other = created(NewGroup("3", "dp", (1, 2)))
    assert state.add(expand((2, *from_span(other, interner, 2), None)))


def test_other_members_under_one_number_disagree_in_whatever_order_they_come() -> None:
    """Ranks 0 and 1 may have completed theirs before the others come, which wait for them."""
    made = {0: (0, 1), 1: (0, 1), 2: (1, 2), 3: (0, 3)}
    for order in permutations(made):
        interner, state = Interner(), GroupState(Group("w", "0", "default_pg", (0, 1, 2, 3)), 4)
        found = []
        for rank in order:
            ended = RecordState.COMPLETED if rank < 2 else RecordState.IN_FLIGHT
            call = from_span(created(NewGroup("3", "tp", made[rank]), ended), interner, rank)
            found.append(state.add(expand((rank, *call, None))))
        assert found.count(True) == 1, order
        (instance,) = state.incomplete.values()
        assert {call.rank: call.signature.new_group.ranks for call in instance.all_calls()} == made, order  # type: ignore[union-attr]
        assert state.call_count == 4
        assert not state.created
        state.evict(even_disagreeing=True)
        state.evict()
        assert (state.weight, state.call_count) == (0, 0)


def test_complete_creations_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_CREATED", 5)
    interner, state = Interner(), GroupState(Group("w", "0", "default_pg", (0, 1, 2, 3)), 4)
    for number in range(1, 10):
        for rank in PAIR.ranks:
            state.add(expand((rank, *from_span(created()._replace(coll_seq=number), interner, rank), None)))
    assert [key[2] for key in state.created] == [8, 9]
    state.evict()
    assert not state.created
    assert (state.weight, state.call_count) == (0, 0)


def test_complete_creations_are_not_looked_through_for_each_new_one() -> None:
    """With 4,096 of them, each took a millisecond: a job that creates 10,000 groups kept the collector for seconds."""

    class Unread(dict[InstanceKey, IncompleteInstance]):
        def values(self) -> Any:
            raise AssertionError("all were read")

    interner, state = Interner(), GroupState(Group("w", "0", "default_pg", (0, 1, 2, 3)), 4)
    state.created = Unread()
    for number in range(1, 4):
        for rank in PAIR.ranks:
            state.add(expand((rank, *from_span(created()._replace(coll_seq=number), interner, rank), None)))
    late = from_span(created()._replace(coll_seq=2), interner, 1)  # by a rank that is no member of the new group
    assert not state.add(expand((1, *late, None)))
    assert not state.incomplete
    assert [key[2] for key in state.created] == [1, 3, 2]
    assert state.created_calls == 7
    state.evict()
    assert (state.weight, state.call_count, state.created_calls) == (0, 0, 0)


def destroyed(state: RecordState = RecordState.COMPLETED) -> Record:
    return created(state=state)._replace(
        record_id=8, coll_seq=4, signature=signature("destroy_process_group", (), backend="")
    )


def test_a_rank_that_destroys_a_group_is_waited_for_by_no_other() -> None:
    interner = Interner()
    run = new_run(world_size=4)
    for rank in (0, 2):
        add_spans(run, rank, [from_span(destroyed(), interner, rank)], 1.0)
    add_spans(run, 1, [from_span(created()._replace(coll_seq=4), interner, 1)], 1.0)
    (group,) = run.groups.values()
    assert [key[2] for key in group.incomplete] == [4]
    assert run.mismatch_since is None
    assert run.ranks[0].destroyed_at == {"w": "/home/user/train.py:42 step"}
    run.ranks[0].progress["w"] = [5, 5, DESTROYED, 0, -1]
    assert snapshot(run, 1.0).ranks[0].progress["w"].destroyed_at == "/home/user/train.py:42 step"


def test_of_many_groups_that_a_rank_destroys_the_newest_are_known() -> None:
    state = RankState(0)
    for number in range(MAX_DESTROYED + 5):
        state.note_destroyed(str(number), "a.py:1 f")
    assert list(state.destroyed_at) == [str(number) for number in range(5, MAX_DESTROYED + 5)]


def test_a_rank_that_hangs_while_it_destroys_a_group_is_evidence_and_waits_for_nobody() -> None:
    interner = Interner()
    run = new_run(world_size=4)
    for number, calls in ((1, [destroyed(RecordState.IN_FLIGHT)]), (2, [])):
        report = RankReport(
            rank=0, number=number, stall_s=5.0, groups=(reported_group(GroupProgress(WORLD, 5, 5, 0, 5, 5, 0, 0), 9),),
            in_flight=tuple(reported_call(Tracked(record, None), 10_000) for record in calls),
            in_flight_more=0, failed=(), idle_s=None,
        )  # fmt: skip
        assert run.apply(report, interner, now=100.0, wall=5e9)
        taken = snapshot(run, 200.0)
        assert [call.signature.operation for call in taken.calls] == ["destroy_process_group"] * len(calls)
        assert look_at_waits(run, 101.0 + 100.0).over is None
        assert set(taken.evidence().ranks) == {0}
        assert not any(group.incomplete for group in run.groups.values())
    assert run.ranks[0].completed_at is None
