"""Whoever sends whatever: nothing raises, everything is counted, and what is kept stays within its bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from otel_fr_collector import timeline
from otel_fr_collector.jobs import groups
from otel_fr_collector.jobs import run as run_module
from otel_fr_collector.jobs import usage as usage_module
from otel_fr_collector.jobs.bounded import Cache, CacheBudget, Ranges
from otel_fr_collector.jobs.calls import SpanCall, Template
from otel_fr_collector.jobs.run import Run, RunId
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.snapshot import snapshot
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import LOGS, TRACES, MalformedError
from otel_fr_collector.outlets.outlets import Outlets
from otel_fr_collector.service import Service
from prometheus_client import generate_latest

from otel_fr import semconv
from otel_fr.match import CallState, Group, Signature, diagnose
from tests.support.told import take
from tests.support.waiting import PATIENCE

RESOURCE_KEYS = [semconv.RANK, semconv.WORLD_SIZE, semconv.JOB_ID, semconv.JOB_ATTEMPT, semconv.RUN_ID]
SPAN_KEYS = [value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)]

values = (
    st.builds(lambda v: AnyValue(string_value=v), st.text(max_size=5) | st.sampled_from(["all_reduce", "[[1]]", "["]))
    | st.builds(lambda v: AnyValue(int_value=v), st.integers(-3, 9) | st.integers(-(2**63), 2**63 - 1))
    | st.builds(lambda v: AnyValue(double_value=v), st.floats())
    | st.builds(lambda v: AnyValue(bytes_value=v), st.binary(max_size=4))
    | st.builds(lambda v: AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=v)])), st.integers(0, 9))
    | st.just(AnyValue())
)  # fmt: skip
ours: list[tuple[str, str | int]] = [
    (semconv.GROUP_ID, "g"),
    (semconv.OPERATION, "all_reduce"),
    (semconv.SEQUENCE_ID, 3),
]


def attributes(keys: list[str]) -> st.SearchStrategy[list[KeyValue]]:
    return st.lists(st.builds(lambda k, v: KeyValue(key=k, value=v), st.sampled_from(keys), values), max_size=8)


def pair(key: str, value: str | int) -> KeyValue:
    return KeyValue(
        key=key, value=AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value)
    )


numbers = st.integers(0, 2**64 - 1)
spans = st.builds(
    lambda extra, sane, start, end: Span(
        start_time_unix_nano=start, end_time_unix_nano=end, attributes=[*(pair(*one) for one in ours if sane), *extra]
    ),
    attributes(SPAN_KEYS), st.booleans(), numbers, numbers,
)  # fmt: skip


@given(attributes(RESOURCE_KEYS), st.booleans(), st.lists(spans, max_size=6))
def test_spans_with_garbage_in_them_never_raise_and_are_all_counted(
    extra: list[KeyValue], sane: bool, sent: list[Span]
) -> None:
    base = [pair(semconv.RANK, 1), pair(semconv.WORLD_SIZE, 4)] if sane else []
    of_rank = ResourceSpans(resource=Resource(attributes=[*base, *extra]), scope_spans=[ScopeSpans(spans=sent)])
    data = ExportTraceServiceRequest(resource_spans=[of_rank]).SerializeToString()

    async def scene() -> Service:
        service = Service(metrics := Metrics(), Outlets(metrics))
        await service.take(TRACES, data)
        await service.take(TRACES, data)
        await service.finish(PATIENCE)
        return service

    service = asyncio.run(scene())
    counted = sum(
        sample.value
        for family in service.metrics.items_received.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    )
    assert counted == 2 * len(sent)
    assert not [s for f in service.metrics.errors.collect() for s in f.samples if s.value and s.name.endswith("_total")]
    generate_latest(service.metrics.registry)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["g", "0-3", "all_reduce", "scheduled"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "ranks"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
call_keys = ["g", "k", "seq", "rec", "i", "op", "in", "out", "idt", "ro", "root", "peer", "tag", "st", "age_s", "err"]
calls = st.dictionaries(st.sampled_from(call_keys), json_values, max_size=12)


@given(
    st.lists(calls, max_size=3), st.lists(calls, max_size=3), st.dictionaries(st.sampled_from(["exit", "exception"]),
    json_values)
)  # fmt: skip
def test_reports_with_garbage_in_them_never_raise(
    inflight: list[dict[str, Any]], failed: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    group = {"id": "g", "name": "0", "ranks": "0-3", "enq": 5, "done": 4}
    sane = {"g": "g", "k": "collective", "seq": 1, "op": "all_reduce", "st": "scheduled", "age_s": 1e14}
    given_calls = [{**sane, **call} for call in inflight]
    body = {"v": 1, "rank": 1, "n": 1, "groups": [group], "inflight": given_calls, "failed": failed, **more}
    record = LogRecord(event_name="torch.rank.progress", body=AnyValue(string_value=json.dumps(body)))
    resource = Resource(attributes=[pair(semconv.RANK, 1), pair(semconv.WORLD_SIZE, 4)])
    logs = ResourceLogs(resource=resource, scope_logs=[ScopeLogs(log_records=[record])])
    data = ExportLogsServiceRequest(resource_logs=[logs]).SerializeToString()

    async def scene() -> Service:
        service = Service(metrics := Metrics(), Outlets(metrics))
        await service.take(LOGS, data)
        await service.finish(PATIENCE)
        return service

    errors = asyncio.run(scene()).metrics.errors
    assert not [s for f in errors.collect() for s in f.samples if s.value and s.name.endswith("_total")]


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_malformed(data: bytes) -> None:
    async def scene() -> None:
        service = Service(metrics := Metrics(), Outlets(metrics))
        for signal in (TRACES, LOGS):
            with contextlib.suppress(MalformedError):
                await service.take(signal, data)

    asyncio.run(scene())


@given(st.lists(st.integers(0, 60)))
def test_ranges_are_a_set_of_numbers(given_numbers: list[int]) -> None:
    ranges = Ranges(limit=100)
    for number in given_numbers:
        ranges.add(number)
    assert [number for number in range(62) if number in ranges] == sorted(set(given_numbers))
    gaps = sum(number + 1 not in given_numbers for number in set(given_numbers))
    assert len(ranges) == gaps


@given(st.lists(st.integers(0, 10_000)))
def test_ranges_are_bounded_and_forget_nothing(given_numbers: list[int]) -> None:
    ranges = Ranges(limit=4)
    for number in given_numbers:
        ranges.add(number)
    assert len(ranges) <= 4
    assert all(number in ranges for number in given_numbers)


def test_a_cache_keeps_what_is_in_use_whatever_else_comes() -> None:
    cache: Cache[int, str] = Cache(CacheBudget(40), lambda *_: 1)
    cache.put(-1, "mine")
    for number in range(1_000):
        cache.put(number, "theirs")
        if number % 5 == 0:
            assert cache.get(-1) == "mine"
        assert len(cache) <= 20


def template(group: str = "g", size: int = 3) -> Template:
    signature = Signature("all_reduce", ((3,),), ((3,),), ("Float",), ("Float",), "sum")
    return Template(Group(group, "0", "default_pg", ()), size, signature, 0, "collective", CallState.COMPLETED)


def span(seq: int, group: str = "g", size: int = 3) -> SpanCall:
    return template(group, size), seq, seq, 0, 10**18, 10**18 + 1_000, None


def a_run(everything: Runs, name: str = "r") -> Run:
    run = everything.get(RunId(name, 0, name), 0.0)
    assert run is not None
    return run


def test_invented_ranks_and_groups_are_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RANKS", 10)
    monkeypatch.setattr(run_module, "MAX_GROUPS", 20)
    monkeypatch.setattr(run_module, "MAX_PROGRESS_ENTRIES", 30)
    monkeypatch.setattr(run_module, "MAX_MEMBERS", 100)
    everything = Runs()
    for name in ("a", "b", "c"):
        run = a_run(everything, name)
        for rank in range(20):
            add_spans(run, rank, [span(1, f"g{number}") for number in range(30)], 0.0)
            listed = [{"id": f"h{number}", "ranks": "0-59"} for number in range(3)]
            take(run, rank, groups=listed)
    usage = everything.usage
    assert (usage.ranks, usage.groups, usage.progress_entries) == (10, 20, 30)
    assert usage.members <= 100
    assert all(usage.refused[kind] for kind in ("ranks", "groups", "progress"))
    everything.drop_ended(timeline.IDLE_FORGET + 1)
    assert (usage.ranks, usage.groups, usage.progress_entries, usage.members) == (0, 0, 0, 0)


def test_a_job_finds_room_despite_many_invented_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS", 100)
    everything = Runs()
    for number in range(10):
        invented = a_run(everything, f"invented-{number}")
        add_spans(invented, 0, [span(1, f"g{number}") for number in range(10)], 0.0)
        everything.trim(10)
    for _ in range(3):
        job = a_run(everything, "job")
        job.last_seen = 10.0
        add_spans(job, 0, [span(1, f"g{number}") for number in range(5)], 10.0)
        everything.trim(5)
    assert set(job.groups) == {f"g{number}" for number in range(5)}
    assert everything.evicted()["runs"] == 1


def test_a_run_over_its_share_evicts_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS", 100)
    everything = Runs()
    add_spans(a_run(everything, "job"), 0, [span(1)], 0.0)
    for _ in range(3):
        add_spans(a_run(everything, "greedy"), 0, [span(1, f"g{number}") for number in range(500)], 10.0)
        everything.trim(500)
    assert {run_id.job for run_id in everything.by_id} == {"job", "greedy"}


def test_a_run_at_the_limit_of_one_run_evicts_none_in_its_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS_PER_RUN", 10)
    monkeypatch.setattr(run_module, "MAX_RANKS_PER_RUN", 2)
    everything = Runs()
    other, large = a_run(everything, "other"), a_run(everything, "large")
    for rank in range(3):
        add_spans(large, rank, [span(1, f"g{number}") for number in range(20)], 0.0)
        everything.trim(20)
    assert list(everything.by_id.values()) == [other, large]
    assert (len(large.groups), len(large.ranks)) == (10, 2)


def test_a_run_that_needs_room_does_not_lose_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS", 10)
    everything = Runs()
    known, new = a_run(everything, "known"), a_run(everything, "new")
    add_spans(known, 0, [span(1, f"g{number}") for number in range(8)], 2 * timeline.ESTABLISHED)
    add_spans(new, 0, [span(1, f"h{number}") for number in range(8)], 0.0)
    everything.trim(8)
    assert list(everything.by_id.values()) == [known, new]
    assert len(new.groups) == 2


WAITS = [{"g": "g", "k": "collective", "seq": 2, "rec": 2, "op": "all_reduce", "st": "scheduled", "age_s": 9.0}]


def take_waiting(run: Run, ranks: int) -> None:
    """They report that they wait in a collective of all."""
    for rank in range(ranks):
        group = {"id": "g", "ranks": f"0-{ranks - 1}", "enq": 2, "done": 1}
        take(run, rank, groups=[group], inflight=WAITS, idle_s=9.0)


def test_a_run_larger_than_the_memory_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_module, "MIN_CALLS", 0)
    monkeypatch.setattr(usage_module, "MIN_REPORTED", 0)
    everything = Runs(most=40_000)
    small = a_run(everything, "small")
    large = a_run(everything, "large")
    take_waiting(large, 40)
    everything.trim()
    take_waiting(small, 2)
    take_waiting(large, 40)
    everything.trim()
    assert list(everything.by_id.values()) == [small, large]
    assert (len(small.ranks), small.progress_entries, small.lacks_ranks) == (2, 2, False)
    assert len(large.ranks) < 40
    assert large.lacks_ranks
    everything.note_crowded(large.last_seen)
    assert everything.crowded == {large.id}


def test_a_rank_for_which_there_was_no_room_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RANKS", 3)
    run = a_run(Runs())
    run.world_size = 4
    take_waiting(run, 4)
    (found,) = diagnose(snapshot(run, 0.1).evidence())
    assert (found.rule, found.culprit_ranks) == ("not_recorded", ())


def test_a_member_list_that_finds_no_room_leaves_the_members_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_MEMBERS", 10)
    run = a_run(Runs())
    take(run, 0, groups=[{"id": "a", "ranks": "0-7"}, {"id": "b", "ranks": "0-7"}])
    assert [len(run.groups[name].group.ranks) for name in ("a", "b")] == [8, 0]
    assert run.usage.refused["members"] == 1


def test_reports_are_cut_short_when_all_together_hold_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_REPORTED", 200)
    everything = Runs()
    run = a_run(everything)
    waits = [
        {"g": "g", "k": "collective", "seq": n, "rec": n, "op": "all_reduce", "st": "scheduled"} for n in range(60)
    ]
    for number in (1, 2):
        for rank in range(8):
            take(run, rank, number, inflight=waits, stack="x" * 5_000)
    state = run.ranks[7]
    assert state.report is not None
    assert (len(state.contents.inflight), state.report.in_flight_more, len(state.stack)) == (
        run_module.CUT_CALLS,
        56,
        run_module.CUT_STACK,
    )
    assert everything.usage.reported <= 200 + 8 * (1 + run_module.CUT_CALLS + run_module.CUT_STACK // 256)
    everything.drop_ended(timeline.IDLE_FORGET + 1)
    assert everything.usage.reported == 0


def test_complete_collectives_are_remembered_in_no_more_than_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_STREAMS", 5)
    closed = groups.CompletedInstances()
    grown = sum(closed.add(("g", "p2p", 0, 1, tag, 0)) for tag in range(50))
    assert grown == len(closed) == 5
    assert ("g", "p2p", 0, 1, 49, 0) in closed
    assert ("g", "p2p", 0, 1, 44, 0) not in closed


def test_what_found_no_room_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_RANKS", 1)
    service = Service(metrics := Metrics(), Outlets(metrics))
    service.runs._max_runs = 2
    for name in ("a", "b", "c", "d"):
        run = a_run(service.runs, name)
        add_spans(run, 0, [span(1)], 0.0)
    text = generate_latest(service.metrics.registry).decode()
    assert 'otel_fr_collector_evicted_total{kind="runs"} 2.0' in text
    assert 'otel_fr_collector_evicted_total{kind="calls"} 1.0' in text
    assert 'otel_fr_collector_capacity_exceeded_total{kind="ranks"} ' in text
