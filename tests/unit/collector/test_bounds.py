"""Whoever sends whatever: nothing raises, everything is counted, and what is kept stays within its bounds."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otel_fr_collector import timeline
from otel_fr_collector.jobs import groups
from otel_fr_collector.jobs import ranks as ranks_module
from otel_fr_collector.jobs import run as run_module
from otel_fr_collector.jobs import snapshot as snapshot_module
from otel_fr_collector.jobs import usage as usage_module
from otel_fr_collector.jobs.bounded import Cache, CacheBudget, Ranges
from otel_fr_collector.jobs.calls import Interner, SpanCall, Template
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.run_spans import add_spans
from otel_fr_collector.jobs.runs import Runs
from otel_fr_collector.jobs.snapshot import snapshot
from otel_fr_collector.metrics import Metrics
from otel_fr_collector.otlp.signals import LOGS, TRACES, MalformedError
from otel_fr_collector.throttle import EVERY, Throttle
from prometheus_client import generate_latest

from otel_fr import semconv
from otel_fr.match import CallState, Group, diagnose
from tests.support.evidence import SUM
from tests.support.otlp_messages import attribute, logs_request, rank_resource, report_record, spans_request
from tests.support.services import internal_errors, new_service, value
from tests.support.told import run_in, take
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
OURS = [
    attribute(*one) for one in ((semconv.GROUP_ID, "g"), (semconv.OPERATION, "all_reduce"), (semconv.SEQUENCE_ID, 3))
]


def attributes(keys: list[str]) -> st.SearchStrategy[list[KeyValue]]:
    return st.lists(st.builds(lambda k, v: KeyValue(key=k, value=v), st.sampled_from(keys), values), max_size=8)


times = st.integers(0, 2**64 - 1)
spans = st.builds(
    lambda extra, sane, start, end: Span(
        start_time_unix_nano=start, end_time_unix_nano=end, attributes=[*(OURS if sane else ()), *extra]
    ),
    attributes(SPAN_KEYS), st.booleans(), times, times,
)  # fmt: skip


def metrics_after(signal: str, *requests: bytes) -> Metrics:
    async def scene() -> Metrics:
        service = new_service()
        for data in requests:
            await service.take(signal, data)
        await service.finish(PATIENCE)
        return service.metrics

    return asyncio.run(scene())


@given(attributes(RESOURCE_KEYS), st.booleans(), st.lists(spans, max_size=6))
def test_spans_with_garbage_in_them_never_raise_and_are_all_counted(
    extra: list[KeyValue], sane: bool, sent: list[Span]
) -> None:
    base = [attribute(semconv.RANK, 1), attribute(semconv.WORLD_SIZE, 4)] if sane else []
    data = spans_request(Resource(attributes=[*base, *extra]), sent)
    metrics = metrics_after(TRACES, data, data)
    kinds = ("otel_fr", "other", "invalid")
    counted = [value(metrics, "otel_fr_collector_items_received_total", signal=TRACES, kind=kind) for kind in kinds]
    assert sum(counted) == 2 * len(sent)
    assert not internal_errors(metrics)
    generate_latest(metrics.registry)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["g", "0-3", "all_reduce", "scheduled"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "ranks"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
call_keys = ["g", "k", "seq", "rec", "i", "op", "in", "out", "idt", "ro", "root", "peer", "tag", "st", "age_s", "err"]
calls = st.dictionaries(st.sampled_from(call_keys), json_values, max_size=12)
report_keys = [
    "v", "stall_s", "inflight_more", "last", "idle_s", "stack", "site", "python_blocked", "exception", "exit", "file",
]  # fmt: skip


@given(
    st.lists(calls, max_size=3), st.lists(calls, max_size=3), st.dictionaries(st.sampled_from(report_keys), json_values)
)
def test_reports_with_garbage_in_them_never_raise(
    inflight: list[dict[str, Any]], failed: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    group = {"id": "g", "name": "0", "ranks": "0-3", "enq": 5, "done": 4}
    sane = {"g": "g", "k": "collective", "seq": 1, "op": "all_reduce", "st": "scheduled", "age_s": 1e14}
    given_calls = [{**sane, **call} for call in inflight]
    body = {"v": 1, "rank": 1, "n": 1, "groups": [group], "inflight": given_calls, "failed": failed, **more}
    assert not internal_errors(metrics_after(LOGS, logs_request((rank_resource(1), report_record(body)))))


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_malformed(data: bytes) -> None:
    async def scene() -> None:
        service = new_service()
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


@pytest.mark.parametrize("text", ["", "train.py:1 step"])
def test_a_text_takes_room_in_the_cache_once(text: str) -> None:
    interner = Interner()
    used = {(interner.text(text), interner.budget.used) for _ in range(3)}
    assert len(used) == 1


def take_groups(run: Run, rank: int, count: int, now: float = 0.0, prefix: str = "g") -> None:
    """A rank's spans of one collective of three ranks in each of so many groups; room is made for them if possible."""
    add_spans(run, rank, [span_in(f"{prefix}{number}") for number in range(count)], now)


def span_in(group: str) -> SpanCall:
    template = Template(Group(group, "0", "default_pg", ()), 3, SUM, 0, "collective", CallState.COMPLETED)
    return template, 1, 1, 0, 10**18, 10**18 + 1_000, None


def test_invented_ranks_and_groups_are_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"MAX_RANKS": 10, "MAX_GROUPS": 20, "MAX_PROGRESS_ENTRIES": 30, "MAX_MEMBERS": 100}
    for name, limit in limits.items():
        monkeypatch.setattr(run_module, name, limit)
    everything = Runs()
    for name in ("a", "b", "c"):
        run = run_in(everything, name)
        for rank in range(20):
            take_groups(run, rank, 30)
            take(run, rank, groups=[{"id": f"h{number}", "ranks": "0-59"} for number in range(3)])
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
        take_groups(run_in(everything, f"invented-{number}", job=f"invented-{number}"), 0, 10)
        everything.trim(10)
    for _ in range(3):
        job = run_in(everything)
        job.last_seen = 10.0
        take_groups(job, 0, 5, 10.0)
        everything.trim(5)
    assert len(job.groups) == 5
    assert everything.evicted()["runs"] == 1


def test_a_run_over_its_share_evicts_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS", 100)
    everything = Runs()
    take_groups(run_in(everything, job="job"), 0, 1)
    for _ in range(3):
        take_groups(run_in(everything, job="greedy"), 0, 500, 10.0)
        everything.trim(500)
    assert {run_id.job for run_id in everything.by_id} == {"job", "greedy"}


def test_a_run_at_the_limit_of_one_run_evicts_none_in_its_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS_PER_RUN", 10)
    monkeypatch.setattr(run_module, "MAX_RANKS_PER_RUN", 2)
    everything = Runs()
    other, large = run_in(everything, job="other"), run_in(everything, job="large")
    for rank in range(3):
        take_groups(large, rank, 20)
        everything.trim(20)
    assert list(everything.by_id.values()) == [other, large]
    assert (len(large.groups), len(large.ranks)) == (10, 2)


def test_a_run_that_needs_room_does_not_lose_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_GROUPS", 10)
    everything = Runs()
    known, new = run_in(everything, job="known"), run_in(everything, job="new")
    take_groups(known, 0, 8, 2 * timeline.ESTABLISHED)
    take_groups(new, 0, 8, prefix="h")
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
    small, large = run_in(everything, job="small"), run_in(everything, job="large")
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
    run = run_in(Runs())
    run.world_size = 4
    take_waiting(run, 4)
    (found,) = diagnose(snapshot(run, 0.1).evidence())
    assert (found.rule, found.culprit_ranks) == ("not_recorded", ())


def test_ranks_for_which_there_was_no_room_are_not_named_in_any_of_their_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a run has more ranks than are kept of one, the limit on unheard ranks does not count those that are."""
    monkeypatch.setattr(run_module, "MAX_RANKS_PER_RUN", 8)
    monkeypatch.setattr(snapshot_module, "MAX_EXPECTED", 8)
    run = run_in(Runs())
    run.world_size = 12
    for rank in (0, 1, 3, 4, 5, 6, 8, 9, 2, 7, 10, 11):
        name = f"g{rank // 4}"
        group = {"id": name, "ranks": f"{rank // 4 * 4}-{rank // 4 * 4 + 3}", "enq": 2, "done": 1}
        take(run, rank, groups=[group], inflight=[{**WAITS[0], "g": name}], idle_s=9.0)
    found = diagnose(snapshot(run, 0.1).evidence())
    assert {(one.rule, one.culprit_ranks) for one in found} == {("not_recorded", ())}


def test_a_member_list_that_finds_no_room_leaves_the_members_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_MEMBERS", 10)
    run = run_in(Runs())
    take(run, 0, groups=[{"id": "a", "ranks": "0-7"}, {"id": "b", "ranks": "0-7"}])
    assert [len(run.groups[name].group.ranks) for name in ("a", "b")] == [8, 0]
    assert run.usage.refused["members"] == 1


def test_reports_are_cut_short_when_all_together_hold_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "MAX_REPORTED", 200)
    everything = Runs()
    run = run_in(everything)
    waits = [{**WAITS[0], "seq": number, "rec": number} for number in range(60)]
    lines = {"g": "g", "first": 1, "calls": "0" * 4_096, "places": [["train.py:1 main"]]}
    for number in (1, 2):
        for rank in range(8):
            take(run, rank, number, inflight=waits, stack="x" * 5_000, lines=[lines])
    state = run.ranks[7]
    assert state.report is not None
    kept = len(state.contents.inflight), state.report.in_flight_more, len(state.stack)
    assert kept == (ranks_module.CUT_CALLS, 60 - ranks_module.CUT_CALLS, ranks_module.CUT_STACK)
    assert state.lines == ()
    assert everything.usage.reported <= 200 + 8 * (1 + ranks_module.CUT_CALLS + ranks_module.CUT_STACK // 256)
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
    service = new_service()
    service.runs._max_runs = 2
    for name in ("a", "b", "c", "d"):
        take_groups(run_in(service.runs, job=name), 0, 1)
    found = {kind: value(service.metrics, "otel_fr_collector_evicted_total", kind=kind) for kind in ("runs", "calls")}
    assert found == {"runs": 2.0, "calls": 1.0}
    assert value(service.metrics, "otel_fr_collector_capacity_exceeded_total", kind="ranks")


def test_messages_that_do_not_come_again_are_forgotten() -> None:
    throttle = Throttle()
    assert all(throttle.allows(f"error {second}", float(second)) for second in range(1_000))
    assert not throttle.allows("error 999", 999.5)
    assert len(throttle._let_through) <= EVERY
