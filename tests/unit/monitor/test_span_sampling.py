"""Which spans are sent where only a sample of the traces is: the same on all ranks, and always those that matter."""

from __future__ import annotations

import random

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from otel_fr import identity
from otel_fr.monitor.nccl.device_calls import Tracked
from otel_fr.monitor.telemetry.span_builder import trace_id
from otel_fr.monitor.telemetry.span_sampling import KEPT_CALLS, MAX_KINDS, MIN_SEEN, SpanSampling
from otel_fr.ring import KIND_GROUP, RecordState
from tests.support.records import made_record
from tests.support.rings import float_signature

RUN = identity.run_id("job", 0, "n")
SIGNATURE = float_signature()


def call(number: int, seconds: float = 0.001, **more: object) -> Tracked:
    return Tracked(made_record(number, seconds, SIGNATURE, **more), None)


def sampling(ratio: float, rank: int = 0) -> SpanSampling:
    return SpanSampling(ratio, lambda record: trace_id(RUN, rank, record))


def numbers(items: list[Tracked]) -> list[int]:
    return [item.record.record_id for item in items]


def test_all_ranks_send_the_same_collectives_which_are_those_of_opentelemetrys_sampler() -> None:
    calls = [call(number) for number in range(5_000)]
    found = [numbers(sampling(0.05, rank).select(calls)) for rank in range(3)]
    of_sdk = TraceIdRatioBased(0.05)
    expected = [
        item.record.record_id
        for item in calls
        if of_sdk.should_sample(None, int.from_bytes(trace_id(RUN, 0, item.record), "big"), "").decision
        is Decision.RECORD_AND_SAMPLE
    ]
    assert found == [expected] * 3
    assert 150 < len(expected) < 350


def test_a_failed_call_is_always_sent() -> None:
    assert numbers(sampling(0.0).select([call(1), call(2, state=RecordState.FAILED), call(3)])) == [2]


def test_the_creation_of_a_group_is_always_sent() -> None:
    """Ranks that create groups differently hang much later, and reports tell of calls in flight only."""
    assert numbers(sampling(0.0).select([call(1), call(2, kind=KIND_GROUP), call(3)])) == [2]


def test_a_call_that_takes_longer_than_nearly_all_of_its_kind_is_sent() -> None:
    chance = random.Random(7)
    own = sampling(0.0)
    usual = [call(number, chance.uniform(0.001, 0.0012)) for number in range(20 * MIN_SEEN)]
    assert len(own.select(usual)) < 0.02 * len(usual)
    assert numbers(own.select([call(9_001, 0.002), call(9_002, 0.0011)])) == [9_001]


def test_until_enough_calls_of_a_kind_are_known_none_counts_as_slow() -> None:
    own = sampling(0.0)
    own.select([call(number) for number in range(20 * MIN_SEEN)])
    larger = float_signature(sizes=((1_000_000,),))
    assert own.select([call(9_001, 0.5, signature=larger)]) == []
    assert numbers(own.select([call(9_002, 0.5)])) == [9_002]


def test_what_is_slow_follows_what_is_usual() -> None:
    own = sampling(0.0)
    own.select([call(number, 0.001) for number in range(9_000)])
    assert len(own.select([call(number, 0.010) for number in range(9_000, 40_000)])) < 10_000
    assert own.select([call(50_000, 0.010)]) == []


def test_durations_of_ever_new_kinds_take_bounded_memory() -> None:
    own = sampling(0.0)
    own.select([call(n, signature=float_signature(sizes=((n + 1,),))) for n in range(MAX_KINDS + 50)])
    assert len(own._durations) == MAX_KINDS


def test_an_incident_keeps_its_trace_the_calls_in_flight_and_the_latest_ones() -> None:
    own = sampling(0.0)
    own.select([call(number) for number in range(200)])
    trace = trace_id(RUN, 0, call(207).record)
    assert numbers(own.note_incident(trace, [200, 201])) == list(range(200 - KEPT_CALLS, 200))
    assert numbers(own.select([call(number) for number in range(200, 210)])) == [200, 201, 207]
    assert numbers(own.note_incident(b"", [])) == [202, 203, 204, 205, 206, 208, 209]


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_the_share_of_the_traces(ratio: float) -> None:
    traces = [identity.trace_id(RUN, "g", "collective", number) for number in range(2_000)]
    kept = sum(map(sampling(ratio).has, traces))
    assert kept == pytest.approx(2_000 * ratio, abs=100 if 0 < ratio < 1 else 0)
