"""A record and the span made of it: same facts, ids that every rank computes alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from otel_fr import identity
from otel_fr.monitor.telemetry.span_builder import Context, SpanBuilder, varint
from otel_fr.ring import KIND_MONITORED, KIND_P2P, GroupDef, Record, RecordState, SiteDef
from tests.support.otlp_messages import attributes
from tests.support.records import made_record
from tests.support.rings import FRAME, float_signature

RUN = identity.run_id("job", 0, "n")
GROUP = GroupDef(identity.group_id("7", (0, 1, 2, 3)), "7", "mesh_dp", (0, 1, 2, 3), "cpu:gloo", 1)
WALL = 1_700_000_000_000_000_000


def record(operation: str = "all_reduce", *, sig: dict[str, Any] | None = None, **values: Any) -> Record:
    given = {"coll_seq": 5, "p2p_seq": 9, "op_id": 14, "pair_index": 2, "timeout_ms": 600_000, "group": GROUP}
    given |= {"issued_ns": 1_000, "ended_ns": 5_000, "site": SiteDef((FRAME,)), **values}
    return made_record(41, None, float_signature(operation, **(sig or {})), **given)


def span_of(item: Record, rank: int = 1, **more: Any) -> Span:
    spans = ScopeSpans.FromString(SpanBuilder(RUN, rank, WALL).encode(item, **more))
    assert len(spans.spans) == 1
    return spans.spans[0]


def test_a_completed_collective_has_every_attribute_it_has_a_value_for() -> None:
    sig = {"root": 2, "reduce_op": "max", "input_splits": (1, 2), "output_splits": (2, 1)}
    span = span_of(record("reduce", sig=sig))
    assert span.name == "reduce mesh_dp"
    assert span.kind == Span.SPAN_KIND_INTERNAL
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (WALL + 1_000, WALL + 5_000)
    assert span.status.code == Status.STATUS_CODE_UNSET
    assert attributes(span.attributes) == {
        "torch.rank": 1,
        "torch.collective.operation": "reduce",
        "torch.collective.kind": "collective",
        "torch.collective.sequence_id": 5,
        "torch.collective.op_id": 14,
        "torch.collective.record_id": 41,
        "torch.collective.backend": "gloo",
        "torch.collective.state": "completed",
        "torch.collective.input.sizes": "[[3, 4]]",
        "torch.collective.output.sizes": "[[3, 4]]",
        "torch.collective.input.dtypes": ["Float"],
        "torch.collective.output.dtypes": ["Float"],
        "torch.collective.input.bytes": 48,
        "torch.collective.output.bytes": 48,
        "torch.collective.input.splits": "[1, 2]",
        "torch.collective.output.splits": "[2, 1]",
        "torch.collective.reduce_op": "max",
        "torch.collective.root": 2,
        "torch.collective.timeout_ms": 600_000,
        "torch.process_group.id": GROUP.id,
        "torch.process_group.name": "7",
        "torch.process_group.description": "mesh_dp",
        "torch.process_group.size": 4,
        "code.file.path": FRAME[0],
        "code.line.number": FRAME[1],
        "code.function.name": FRAME[2],
    }


def test_ids_are_those_that_identity_defines() -> None:
    item = record()
    span = span_of(item, rank=3)
    trace = identity.trace_id(RUN, GROUP.id, "collective", 5)
    assert span.trace_id == trace
    assert span.span_id == identity.span_id(trace, 3, 41)
    # Only incidents have a root, and a parent that is never sent is an error in backends.
    assert not span.parent_span_id


@pytest.mark.parametrize("suffix", ["", " [rank 3]"])
def test_the_rank_comes_first_and_ends_the_name_where_it_is_wanted(suffix: str) -> None:
    """The collector finds what all ranks have in common behind the rank (`SpanReader`)."""
    spans = ScopeSpans.FromString(SpanBuilder(RUN, 300, WALL, suffix).encode(record())).spans
    assert spans[0].name == f"all_reduce mesh_dp{suffix}"
    assert (spans[0].attributes[0].key, spans[0].attributes[0].value.int_value) == ("torch.rank", 300)


def test_all_ranks_of_a_collective_share_a_trace_and_differ_in_their_span() -> None:
    spans = [span_of(record(record_id=rank * 7), rank=rank) for rank in range(4)]
    assert len({span.trace_id for span in spans}) == 1
    assert len({span.span_id for span in spans}) == 4


@pytest.mark.parametrize("step", [-1, 0, 300])
def test_a_call_links_to_what_it_was_made_in(step: int) -> None:
    plain = span_of(record())
    assert not plain.links
    span = span_of(record(), context=Context(b"t" * 16, b"s" * 8, step))
    (link,) = span.links
    assert (link.trace_id, link.span_id) == (b"t" * 16, b"s" * 8)
    found = attributes(span.attributes)
    assert found.pop("torch.step", None) == (None if step < 0 else step)
    assert found == attributes(plain.attributes)
    assert span.trace_id == plain.trace_id
    assert span.SerializeToString()[-30:] == b"\x6a\x1c\x0a\x10" + b"t" * 16 + b"\x12\x08" + b"s" * 8


def test_a_call_links_to_the_programs_own_span_too() -> None:
    span = span_of(record(), context=Context(b"t" * 16, b"s" * 8, 3, b"u" * 16 + b"v" * 8))
    assert [(link.trace_id, link.span_id) for link in span.links] == [(b"t" * 16, b"s" * 8), (b"u" * 16, b"v" * 8)]


def test_a_send_and_its_receive_share_a_trace() -> None:
    send = span_of(record("send", kind=KIND_P2P, p2p_seq=1, sig={"peer": 2, "tag": 5}), rank=0)
    recv = span_of(record("recv", kind=KIND_P2P, p2p_seq=8, sig={"peer": 0, "tag": 5}), rank=2)
    back = span_of(record("send", kind=KIND_P2P, sig={"peer": 0, "tag": 5}), rank=2)
    assert send.trace_id == recv.trace_id != back.trace_id
    assert attributes(recv.attributes)["torch.collective.pair_index"] == 2
    assert attributes(recv.attributes)["torch.collective.sequence_id"] == 8
    assert attributes(recv.attributes)["torch.collective.kind"] == "p2p"


def test_receives_from_any_source_do_not_meet_in_one_trace() -> None:
    sig = {"peer": None, "tag": 0, "any_source": True}
    spans = [span_of(record("recv", kind=KIND_P2P, p2p_seq=n, sig=sig), rank=rank) for rank in (0, 1) for n in (1, 2)]
    assert len({span.trace_id for span in spans}) == 4


def test_a_monitored_barrier_does_not_share_the_trace_of_the_collective_of_its_number() -> None:
    assert span_of(record("monitored_barrier", kind=KIND_MONITORED)).trace_id != span_of(record("barrier")).trace_id


@pytest.mark.parametrize(
    ("state", "took_ms", "error"),
    [
        (RecordState.FAILED, 600_001, "timeout"),
        (RecordState.FAILED, 30, "collective_failed"),
        (RecordState.COMPLETED, 30, None),
    ],
)
def test_only_a_failed_call_has_an_error_type(state: RecordState, took_ms: int, error: str | None) -> None:
    span = span_of(record(state=state, ended_ns=1_000 + took_ms * 1_000_000))
    assert attributes(span.attributes).get("error.type") == error
    assert (span.status.code == Status.STATUS_CODE_ERROR) is (error is not None)


@pytest.mark.parametrize(("clean", "error"), [(False, "rank_exited"), (True, None)])
def test_a_call_in_flight_ends_with_its_rank(clean: bool, error: str | None) -> None:
    span = span_of(record(state=RecordState.IN_FLIGHT, ended_ns=None), rank_ended_ns=9_000, clean=clean)
    found = attributes(span.attributes)
    assert found["torch.collective.state"] == "scheduled"
    assert found.get("error.type") == error
    assert span.end_time_unix_nano == WALL + 9_000


def test_a_span_never_ends_before_it_starts() -> None:
    span = span_of(record(state=RecordState.UNKNOWN, ended_ns=None))
    assert span.end_time_unix_nano == span.start_time_unix_nano
    assert attributes(span.attributes)["torch.collective.state"] == "unknown"


def test_equal_numbers_of_one_template_do_not_leak_into_the_next_span() -> None:
    """One template serves thousands of calls: state, error and numbers are each call's own."""
    builder = SpanBuilder(RUN, 0, WALL)
    first = record(state=RecordState.FAILED, timeout_ms=1)
    second = first._replace(record_id=42, coll_seq=6, state=RecordState.COMPLETED)
    spans = ScopeSpans.FromString(builder.encode(first) + builder.encode(second)).spans
    found = [attributes(span.attributes) for span in spans]
    assert [one["torch.collective.state"] for one in found] == ["failed", "completed"]
    assert [one.get("error.type") for one in found] == ["collective_failed", None]
    assert [one["torch.collective.sequence_id"] for one in found] == [5, 6]


@given(
    numbers=st.tuples(*[st.integers(0, 2**63 - 1)] * 3),
    issued=st.integers(0, 2**60),
    took=st.integers(0, 2**60),
    shapes=st.lists(st.lists(st.integers(0, 2**40), max_size=4).map(tuple), max_size=300).map(tuple),
    text=st.text(st.characters(codec="utf-8"), max_size=40),
)
def test_any_record_becomes_one_valid_span(
    numbers: tuple[int, int, int], issued: int, took: int, shapes: tuple[tuple[int, ...], ...], text: str
) -> None:
    given: dict[str, Any] = dict(zip(("record_id", "coll_seq", "op_id"), numbers, strict=True))
    given |= {"issued_ns": issued, "ended_ns": issued + took}
    item = record(sig={"input_sizes": shapes}, site=SiteDef(((text, 3, text),)), **given)
    span = span_of(item)
    found = attributes(span.attributes)
    keys = ("record_id", "sequence_id", "op_id")
    assert tuple(found[f"torch.collective.{key}"] for key in keys) == numbers
    assert span.end_time_unix_nano - span.start_time_unix_nano == took
    assert json.loads(found["torch.collective.input.sizes"]) == [list(shape) for shape in shapes[:256]]
    assert found["code.file.path"] == text
    assert len(found) == len(span.attributes), "an attribute occurs twice"


@given(st.integers(0, 2**64 - 1))
def test_varint_is_protobuf_s(value: int) -> None:
    from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]

    assert _DecodeVarint(varint(value), 0) == (value, len(varint(value)))
