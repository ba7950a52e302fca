"""Reports and spans are read alike, whatever is in them; nothing that arrives can raise anything but ValueError."""

from __future__ import annotations

import contextlib
import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import Group, Issued
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otel_fr_collector.calls import Interner
from otel_fr_collector.report import parse_report
from otel_fr_collector.runs import RunId
from otel_fr_collector.spans import Origin, read_span

from otel_fr.match import Ending, State

ORIGIN = Origin(RunId("job", 0, "run"), 3)
GROUP = Group("0", [0, 1, 2, 3], "default_pg")

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
report_keys = st.sampled_from(
    ["v", "rank", "n", "stall_s", "groups", "inflight", "inflight_more", "failed", "last", "idle_s", "stack", "site"]
) | st.sampled_from(["python_blocked", "exception", "exit", "file"])
call_keys = st.sampled_from(
    ["g", "k", "seq", "rec", "op", "in", "idt", "root", "st", "age_s", "timeout_ms", "i", "err"]
)


def read(body: dict[str, Any]) -> Any:
    return parse_report(json.dumps({"v": 1, "rank": 3, "n": 1, "groups": [], **body}), Interner(), now=100.0, wall=5e9)


@settings(max_examples=300)
@given(st.dictionaries(report_keys, json_values), st.lists(st.dictionaries(call_keys, json_values), max_size=3))
def test_any_json_is_a_report_or_a_value_error(body: dict[str, Any], calls: list[dict[str, Any]]) -> None:
    with contextlib.suppress(ValueError):
        read({**body, "inflight": calls})


@settings(max_examples=200)
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
    body = {"v": 1, "rank": 3, "n": 1, "groups": [], "last": call.report(100.0)}
    reported = parse_report(json.dumps(body), interner, now=100.0, wall=5e9).last
    read_back = read_span(call.span("run", 100.0), ORIGIN, interner)
    assert reported is not None
    assert read_back is not None
    spanned, group, size = read_back
    assert spanned.signature is reported.signature
    for field in ("rank", "record", "group", "stream", "sequence_id", "state", "site", "timeout", "pair_index"):
        assert getattr(spanned, field) == getattr(reported, field)
    assert spanned.key() == reported.key()
    assert (group.id, size) == (GROUP.id, 4)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_any_span_is_a_call_or_a_value_error(data: bytes) -> None:
    span = Issued(3, GROUP, "collective", 7, "all_reduce", 11, 90.0, 4e9, [[1]], took=0.1).span("run", 100.0)
    with contextlib.suppress(Exception):
        span.MergeFromString(data)
    with contextlib.suppress(ValueError):
        read_span(cast("Span", span), ORIGIN, Interner())


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
        ({"exception": {"type": "ValueError"}, "exit": {"code": 0, "signal": 0, "known": False}}, Ending.RAISED),
    ],
)
def test_how_a_rank_ended(body: dict[str, Any], ending: Ending | None) -> None:
    report = read(body)
    assert report.ending is ending
    assert report.has_exited is ("exit" in body)


def test_a_call_ages_on_the_collectors_clock() -> None:
    call = Issued(3, GROUP, "collective", 7, "all_reduce", 11, 98.5, 4e9, [[1]])
    part = read({"inflight": [call.report(100.0)]}).inflight[0]
    assert part.state is State.IN_FLIGHT
    assert part.call(102.0).age == pytest.approx(3.5)
