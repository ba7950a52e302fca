"""Reports and spans are read alike, whatever is in them; nothing that arrives can raise anything but ValueError."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span
from otel_fr_collector.jobs.calls import Interner, SpanCall
from otel_fr_collector.jobs.ranks import RankState
from otel_fr_collector.jobs.span_reader import SpanReader

from otel_fr import semconv
from otel_fr.dumps.device_times import DeviceTimes
from otel_fr.match import CallState, Ending
from otel_fr.monitor.telemetry.span_builder import Context, SpanBuilder
from otel_fr.rank_report import parse
from otel_fr.ring import KIND_COLLECTIVE, GroupDef, Record, RecordState, SiteDef
from tests.support.otlp_messages import order_attributes
from tests.support.played_job import Group, Issued
from tests.support.rings import FRAME, float_signature
from tests.support.told import new_run

RING_GROUP = GroupDef("0123456789abcdef", "7", "mesh_dp", (0, 1, 2, 3), "cpu:gloo", 1)
SIGNATURE, SITE = float_signature("all_reduce"), SiteDef((FRAME,))
GROUP = Group("0", [0, 1, 2, 3], "default_pg")
OF_ONE_CALL = [semconv.SEQUENCE_ID, semconv.OP_ID, semconv.RECORD_ID, semconv.PAIR_INDEX, semconv.ERROR_TYPE]
"""What differs from call to call comes last, as monitors send it."""


def read(body: dict[str, Any], interner: Interner | None = None) -> RankState:
    """What is known of a rank after that report."""
    run = new_run()
    given = parse(json.dumps({"v": 1, "rank": 3, "n": 1, "groups": [], **body}))
    run.apply(given, interner or Interner(), now=100.0, wall=5e9)
    return run.ranks[given.rank]


@given(
    op=st.sampled_from(["all_reduce", "send", "recv", "monitored_barrier", "broadcast"]),
    sizes=st.lists(st.lists(st.integers(0, 2**40), max_size=4), max_size=300),
    dtype=st.sampled_from(["Float", "BFloat16"]),
    root=st.none() | st.integers(0, 10),
    peer=st.none() | st.integers(0, 10),
    state=st.sampled_from(["scheduled", "completed", "failed", "unknown"]),
)
def test_a_call_reads_the_same_from_its_span_and_from_its_report(
    op: str, sizes: list[list[int]], dtype: str, root: int | None, peer: int | None, state: str
) -> None:
    """Were it otherwise, a rank known by its span and one known by its report would seem to disagree."""
    kind = "p2p" if op in ("send", "recv") else "collective"
    call = Issued(3, GROUP, kind, 7, op, 11, 90.0, 4e9, sizes, dtype, root=root, peer=peer, state=state, took=0.5)
    interner = Interner()
    reported = read({"last": call.report(100.0)}, interner).contents.last
    ((template, sequence, record, pair, start, end, _),) = read_spans([call.span("run", 100.0)], interner)
    assert reported is not None
    assert template.signature is reported.signature
    assert (sequence, record, pair) == (reported.sequence_id, reported.record, reported.pair_index)
    assert (template.group.id, template.size) == (GROUP.id, 4)
    for field in ("stream", "state", "site", "timeout"):
        assert getattr(template, field) == getattr(reported, field)
    assert start == 4 * 10**18
    assert end - start == pytest.approx(5 * 10**8, rel=1e-5)  # the kit computes in floats


def read_spans(spans: list[Span], interner: Interner | None = None) -> list[SpanCall]:
    invalid: list[str] = []
    found = SpanReader(interner or Interner()).read([span.SerializeToString() for span in spans], invalid)
    assert not invalid
    return found


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 2**40),
            st.none() | st.integers(0, 300),
            st.sampled_from(["all_reduce", "broadcast"]),
            st.none() | st.sampled_from(["timeout", "rank_exited"]),
            st.randoms(use_true_random=False) | st.none(),
        ),
        max_size=12,
    )
)
def test_spans_read_the_same_whether_their_attributes_are_new_or_known_and_in_any_order(
    drawn: list[tuple[int, int, int | None, str, str | None, random.Random | None]],
) -> None:
    """What is remembered of one span must not leak into another."""
    spans: list[Span] = []
    for sequence, record, pair, op, error, order in drawn:
        kind = "collective" if pair is None else "p2p"
        call = Issued(3, GROUP, kind, sequence, op, record, 90.0, 4e9, [[1]], pair_index=pair or 0, error=error, took=1)
        span = call.span("run", 100.0)
        order_attributes(span, OF_ONE_CALL)
        if order is not None:
            span.attributes.sort(key=lambda _: order.random())
        spans.append(span)
    interner = Interner()
    together = read_spans([*spans, *spans], interner)
    assert together[: len(spans)] == together[len(spans) :]
    assert together[: len(spans)] == [read_spans([span], interner)[0] for span in spans]
    for (sequence, record, pair, op, error, _), (template, *numbers) in zip(drawn, together, strict=False):
        assert numbers[:3] == [sequence, record, pair or 0]
        assert (template.signature.operation, template.error) == (op, error)


@given(
    calls=st.lists(
        st.tuples(
            st.text("ab", min_size=1, max_size=4),
            st.text("ab", min_size=1, max_size=4),
            st.sampled_from([1, 200, 40_000]),
            st.sampled_from([0, 1, 300]),
            st.integers(0, 2),
        ),
        min_size=1,
        max_size=12,
    ),
    changes=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 2**16), st.integers(0, 255)), max_size=4),
)
def test_spans_of_equal_length_read_the_same_whichever_came_before(
    calls: list[tuple[str, str, int, int, int]], changes: list[tuple[int, int, int]]
) -> None:
    """A reader remembers where spans of one length are cut; those that are cut elsewhere, or damaged, do not suffer."""
    spans: list[bytes] = []
    for group, dtype, sequence, rank, links in calls:
        issued = Issued(
            rank, Group("0", [0, 1], group), "collective", sequence, "all_reduce", 1, 9.0, 4e9, [[1]], dtype
        )
        issued.state, issued.took = "completed", 0.1
        span = issued.span("run", 100.0)
        order_attributes(span, OF_ONE_CALL, [semconv.RANK])
        for number in range(links):
            span.links.add(trace_id=bytes((number,)) * 16, span_id=bytes((number,)) * 8)
        spans.append(span.SerializeToString())
    for index, place, value in changes:
        changed = bytearray(spans[index % len(spans)])
        changed[place % len(changed)] = value
        spans.append(bytes(changed))
    reader, interner = SpanReader(Interner()), Interner()
    for _ in range(2):
        for data in spans:
            known_problems: list[str] = []
            problems: list[str] = []
            known, fresh = reader.read([data], known_problems), SpanReader(interner).read([data], problems)
            assert (known, known_problems) == (fresh, problems)


@given(st.binary(max_size=200), st.integers(0, 2**63), st.binary(max_size=3), st.booleans())
def test_any_bytes_are_a_call_or_foreign_or_counted_and_never_believed(
    data: bytes, place: int, change: bytes, known: bool
) -> None:
    """Where the bytes are decoded as a whole and where they are looked up in pieces, the same comes out."""
    span = Issued(3, GROUP, "collective", 7, "all_reduce", 11, 90.0, 4e9, [[1]], took=0.1).span("run", 100.0)
    order_attributes(span, OF_ONE_CALL)
    whole = span.SerializeToString()
    place %= len(whole)
    reader = SpanReader(Interner())
    if known:
        reader.read([whole], [])
    for raw in (data, whole + data, whole[:place] + change + whole[place + len(change) :], whole[:place]):
        invalid: list[str] = []
        found = reader.read([raw], invalid)
        assert len(found) + len(invalid) <= 1
        with contextlib.suppress(DecodeError):
            decoded = Span.FromString(raw)
            sequences = [item.value.int_value for item in decoded.attributes if item.key == semconv.SEQUENCE_ID]
            for _, sequence, _, _, start, end, _ in found:
                assert sequence == sequences[-1]
                assert (start, end) == (decoded.start_time_unix_nano, decoded.end_time_unix_nano)


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ({}, None),
        ({"exit": {"code": 0, "signal": 0, "clean": True, "known": True}}, Ending.CLEAN),
        ({"exit": {"code": 0, "signal": 0, "clean": False, "known": True}}, Ending.CLEAN),
        ({"exit": {"code": 3, "signal": 0, "clean": False, "known": True}}, Ending.RAISED),
        ({"exit": {"code": 0, "signal": 9, "clean": False, "known": True}}, Ending.KILLED),
        ({"exit": {"code": 0, "signal": 0, "clean": False, "known": False}}, Ending.GONE),
        ({"exception": {"type": "ValueError"}}, Ending.RAISED),
        ({"thread_exceptions": [{"type": "ValueError", "thread": "loader"}]}, None),
        ({"exception": {"type": "ValueError"}, "exit": {"code": 0, "signal": 0, "known": True}}, Ending.CLEAN),
        ({"exception": {"type": "ValueError"}, "exit": {"code": 0, "signal": 15, "known": True}}, Ending.RAISED),
        ({"exception": {"type": "KeyboardInterrupt"}, "exit": {"code": 0, "signal": 2}}, Ending.KILLED),
        ({"exception": {"type": "ValueError"}, "exit": {"code": 0, "signal": 0, "known": False}}, Ending.RAISED),
    ],
)
def test_how_a_rank_ended(body: dict[str, Any], ending: Ending | None) -> None:
    state = read(body)
    assert state.ending is (ending or Ending.RUNNING)
    assert (state.ended is not None) is ("exit" in body)


def test_a_call_ages_on_the_collectors_clock() -> None:
    call = Issued(3, GROUP, "collective", 7, "all_reduce", 11, 98.5, 4e9, [[1]])
    found = read({"inflight": [call.report(100.0)]}).contents.inflight[0]
    assert found.state is CallState.IN_FLIGHT
    assert found.as_call(102.0).age == pytest.approx(3.5)


def record(number: int) -> Record:
    return Record(
        number, 1_000, None, 5_000, RecordState.COMPLETED, 5, 0, 5, 0, KIND_COLLECTIVE, 0, 600_000, "MainThread",
        RING_GROUP, SIGNATURE, SITE,
    )  # fmt: skip


@pytest.mark.parametrize("parent", [b"", b"p" * 8])
@pytest.mark.parametrize("suffix", ["", " [rank {}]"])
def test_equal_calls_of_all_ranks_are_decoded_once(suffix: str, parent: bytes) -> None:
    """``parent``: spans of other senders may have one, and no rank."""
    reader = SpanReader(Interner())
    found = []
    for rank in (0, 1, 2, 300, 16_383):
        encoded = SpanBuilder("run", rank, 10**18, suffix.format(rank)).encode(record(rank))
        span = ScopeSpans.FromString(encoded).spans[0]
        if parent:
            span.parent_span_id = parent
            del span.attributes[0]
        invalid: list[str] = []
        found += reader.read([span.SerializeToString()], invalid)
        assert not invalid
    assert [call[1:3] for call in found] == [(5, rank) for rank in (0, 1, 2, 300, 16_383)]
    assert len({id(call[0]) for call in found}) == len(reader._templates if parent else reader._heads) == 1


@pytest.mark.parametrize("has_links", [False, True])
def test_when_calls_ran_on_their_devices_costs_no_decoding_on_the_next_rank(has_links: bool) -> None:
    reader = SpanReader(Interner())
    context = Context(b"t" * 16, b"s" * 8, 7) if has_links else None
    found = []
    for rank in (0, 1):
        device = DeviceTimes(RecordState.COMPLETED, 2_000 + rank, 5_000, 0.25 + rank)
        encoded = SpanBuilder("run", rank, 10**18).encode(record(9), context=context, device=device)
        span = ScopeSpans.FromString(encoded).spans[0]
        values = {item.key: item.value.double_value for item in span.attributes}
        assert values[semconv.DEVICE_DURATION] == (0.25 + rank) * 1e3
        assert values[semconv.DEVICE_DELAY] == (1_000 + rank) / 1e6
        found += reader.read([span.SerializeToString()], [])
        turned = Span.FromString(span.SerializeToString())  # by a sender that orders them in another way
        del turned.attributes[:]
        turned.attributes.extend(reversed(span.attributes))
        found += reader.read([turned.SerializeToString()], [])
    assert {call[1:3] for call in found} == {(5, 9)}
    assert {call[-1] for call in found} == {0.25, 1.25}
    assert (len(reader._tails), len(reader._heads), len(reader._templates)) == (1, 1, 1)


@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize("step", [-1, 0, 7, 2**40])
def test_links_to_what_a_call_was_made_in_cost_no_decoding_on_the_next_rank(step: int, links: int) -> None:
    plain = []
    for rank in (0, 1):
        call = Issued(rank, GROUP, "collective", 5, "all_reduce", 8, 90.0, 4e9, [[1]], state="completed", took=1)
        span = call.span("run", 100.0)
        order_attributes(span, OF_ONE_CALL)
        span.ClearField("status")
        plain.append(span)
    linked = [Span.FromString(span.SerializeToString()) for span in plain]
    for rank, span in enumerate(linked):
        if step >= 0:
            span.attributes.add(key=semconv.STEP).value.int_value = step
        for number in range(links):
            span.links.add(trace_id=bytes([rank + 1 + number] * 16), span_id=bytes([rank + 1] * 8))
    reader = SpanReader(Interner())
    found = reader.read([span.SerializeToString() for span in linked], [])
    assert [call[1:] for call in found] == [call[1:] for call in read_spans(plain)]
    assert len(reader._tails) == 1


@given(st.lists(st.lists(st.integers(0, 4), max_size=12), max_size=5))
def test_calls_that_follow_one_another_in_any_order_are_read_as_what_they_are(requests: list[list[int]]) -> None:
    """All five are of one length, so that the reader cuts each as it did the one before."""
    reader = SpanReader(Interner())
    for operations in [*requests, *requests]:
        spans = []
        for number, operation in enumerate(operations):
            call = Issued(
                0, GROUP, "collective", number, f"operation{operation}", 8, 90.0, 4e9, [[1]], state="completed"
            )
            span = call.span("run", 100.0)
            order_attributes(span, OF_ONE_CALL, [semconv.RANK])
            span.ClearField("status")
            spans.append(span.SerializeToString())
        found = reader.read(spans, [])
        assert [call[0].signature.operation for call in found] == [f"operation{one}" for one in operations]
    assert reader._followers or not any(requests)  # else it has read each as a whole
