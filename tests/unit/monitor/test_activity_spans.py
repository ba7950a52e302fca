"""Sections and steps as spans, and the links of calls to them."""

from __future__ import annotations

import random

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from otel_fr import identity
from otel_fr import semconv as names
from otel_fr.monitor.telemetry.activity_spans import MAX_KEPT, ActivitySpans
from otel_fr.ring import Activity
from tests.support.records import made_activity as activity

MAIN = 700


def spans_of(*data: bytes) -> list[Span]:
    return list(ScopeSpans.FromString(b"".join(data)).spans)


def values(span: Span) -> dict[str, object]:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}


@pytest.fixture
def builder() -> ActivitySpans:
    return ActivitySpans("run", 3, 1_000_000, MAIN)


def test_a_step_and_its_sections_are_one_trace(builder: ActivitySpans) -> None:
    step = activity(5, 100, 900, is_step=True, name="", step=41, is_automatic=True)
    outer = activity(6, 200, 800, name="forward", parent=5, root=5, step=41, timeout_ms=30_000)
    inner = activity(7, 300, 400, name="attention", parent=6, root=5, step=41)
    one, two, three = spans_of(*map(builder.encode, (step, outer, inner)))
    assert one.trace_id == two.trace_id == three.trace_id == identity.activity_trace_id("run", 3, 5)
    assert (one.parent_span_id, two.parent_span_id, three.parent_span_id) == (b"", one.span_id, two.span_id)
    assert (one.name, two.name) == ("step", "forward")
    assert (one.start_time_unix_nano, one.end_time_unix_nano) == (1_000_100, 1_000_900)
    assert values(one) == {names.RANK: 3, names.STEP: 41, names.STEP_SOURCE: "optimizer", names.THREAD_ID: MAIN}
    assert values(two)[names.SECTION] == "forward"
    assert values(two)[names.SECTION_TIMEOUT] == 30_000
    assert identity.activity_trace_id("run", 4, 5) != one.trace_id


def test_how_it_ended_shows(builder: ActivitySpans) -> None:
    failed, left, killed, clean = spans_of(
        builder.encode(activity(1, 100, 200, is_failed=True)),
        builder.encode(activity(2, 100, 200, is_left=True)),
        builder.encode(activity(3, 100), 500),
        builder.encode(activity(4, 100), 500, clean=True),
    )
    assert (failed.status.code, values(failed)[names.ERROR_TYPE]) == (Status.STATUS_CODE_ERROR, "exception")
    assert values(left)[names.SECTION_LEFT] == 1
    assert (killed.end_time_unix_nano, values(killed)[names.ERROR_TYPE]) == (1_000_500, "rank_exited")
    assert clean.status.code == Status.STATUS_CODE_UNSET


def test_a_call_is_in_the_section_or_step_that_began_last(builder: ActivitySpans) -> None:
    assert builder.at(50) is None
    step = activity(1, 100, is_step=True, name="", step=7)
    outer = activity(2, 200, parent=1, root=1, step=7)
    builder.note([step, outer], [])
    inner = activity(3, 300, 400, parent=2, root=1, step=7)
    builder.note([step, outer], [inner])
    number_at = {time: builder.at(time) for time in (50, 150, 250, 350, 450)}
    trace = identity.activity_trace_id("run", 3, 1)
    ids = {identity.activity_span_id(trace, number): number for number in (1, 2, 3)}
    assert number_at[50] is None
    assert [ids[found.span] for time in (150, 250, 350, 450) if (found := number_at[time])] == [1, 2, 3, 2]
    found = builder.at(350)
    assert found is not None
    assert (found.trace, found.step) == (trace, 7)
    builder.note([], [activity(2, 200, 500, parent=1, root=1, step=7), activity(1, 100, 600, is_step=True, step=7)])
    assert builder.at(700) is None
    still = builder.at(550)
    assert still is not None
    assert ids[still.span] == 1


def test_sections_of_other_threads_are_not_where_calls_are_made(builder: ActivitySpans) -> None:
    builder.note([activity(1, 100, native_id=MAIN + 1)], [])
    assert builder.at(200) is None


def test_what_is_kept_is_bounded(builder: ActivitySpans) -> None:
    for number in range(1, MAX_KEPT + 500):
        builder.note([], [activity(number, number * 10, number * 10 + 5)])
    assert len(builder._order) == len(builder._known) == MAX_KEPT
    assert builder.at(10) is None
    assert builder.at((MAX_KEPT + 400) * 10) is not None


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_a_search_of_all(seed: int) -> None:
    numbers = random.Random(seed)
    builder = ActivitySpans("run", 0, 0, MAIN)
    items: list[Activity] = []
    for number in range(1, 40):
        began = numbers.randrange(1000)
        items.append(activity(number, began, began + numbers.randrange(1, 300)))
    numbers.shuffle(items)
    builder.note([], items)
    for time in range(0, 1300, 7):
        inside = [item for item in items if item.began_ns <= time < (item.ended_ns or 0)]
        found = builder.at(time)
        if not inside:
            assert found is None
            continue
        best = max(inside, key=lambda item: (item.began_ns, item.number))
        trace = identity.activity_trace_id("run", 0, best.root)
        assert found is not None
        assert found.span == identity.activity_span_id(trace, best.number)


USER = b"u" * 16 + b"v" * 8


def test_a_step_and_the_calls_in_it_link_to_the_programs_own_span(builder: ActivitySpans) -> None:
    step = activity(5, 100, is_step=True, name="", step=41, user=USER)
    section = activity(6, 200, 300, parent=5, root=5, step=41)
    (span,) = spans_of(builder.encode(step))
    assert [(link.trace_id, link.span_id) for link in span.links] == [(USER[:16], USER[16:])]
    assert not spans_of(builder.encode(section))[0].links  # its parent has it
    builder.note([step, section], [])
    for time in (150, 250):
        context = builder.at(time)
        assert context is not None
        assert context.user == USER
    assert (builder.at(50), builder.at(150) != builder.at(250)) == (None, True)


def test_the_span_of_a_step_of_an_optimizer_is_known_at_its_end(builder: ActivitySpans) -> None:
    begun = activity(5, 100, is_step=True, name="", step=41, is_automatic=True)
    builder.note([begun], [])
    before = builder.at(150)
    builder.note([], [activity(5, 100, 900, is_step=True, name="", step=41, is_automatic=True, user=USER)])
    after = builder.at(150)
    assert before is not None
    assert after is not None
    assert (before.user, after.user) == (None, USER)
    assert before[:3] == after[:3]
