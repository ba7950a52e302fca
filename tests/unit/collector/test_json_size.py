"""OTLP/JSON: it is the same request as protobuf; what is larger than is decoded is refused before it is decoded."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otel_fr_collector.otlp import json_encoding
from otel_fr_collector.otlp.json_encoding import from_json
from otel_fr_collector.otlp.signals import METRICS, TRACES, MalformedError
from otel_fr_collector.otlp.wire import TooManyError

texts = st.text(st.sampled_from('a\\"\n{[,é'), max_size=6)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def count(value: Any) -> int:
    """Objects and lists, and what separates their members."""
    members = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + max(0, len(members) - 1) + sum(map(count, members))


def test_json_is_the_same_request_as_protobuf() -> None:
    """Ids in hex, enumerations as numbers, 64-bit numbers as text, null for nothing, unknown fields ignored."""
    span = {
        "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "GET /", "kind": 2,
        "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": 1544712661000000000, "later": {"a": 1},
        "attributes": [{"key": "traceId", "value": {"stringValue": "not hex"}}],
        "parentSpanId": None, "links": [{"traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174"}],
    }  # fmt: skip
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    taken = ExportTraceServiceRequest.FromString(from_json(TRACES, body))
    sent = taken.resource_spans[0].scope_spans[0].spans[0]
    assert sent.trace_id.hex() == sent.links[0].trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert sent.span_id.hex() == "eee19b7ec3c1b174"
    assert (sent.kind, sent.end_time_unix_nano) == (2, 1544712661000000000)
    assert sent.attributes[0].value.string_value == "not hex"


@given(values, st.booleans())
def test_values_are_counted_as_they_are_decoded(value: Any, ascii_only: bool) -> None:
    body = json.dumps({"resourceSpans": [], "x": value}, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_encoding, "MAX_VALUES", count(value) + 3)
        assert from_json(TRACES, body) == b""
        patched.setattr(json_encoding, "MAX_VALUES", count(value) + 2)
        with pytest.raises(TooManyError):
            from_json(TRACES, body)


keys = st.sampled_from(["resourceSpans", "resource", "scopeSpans", "spans", "traceId", "attributes", "value"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=15,
    )
)
def test_any_json_is_a_request_or_malformed(body: object) -> None:
    with contextlib.suppress(MalformedError):
        ExportTraceServiceRequest.FromString(from_json(TRACES, json.dumps(body).encode()))


@pytest.mark.parametrize("part", ["{}", "[]", "[[]]", '{"a":{}}', '""', "1"])
def test_a_body_of_many_small_values_is_refused_before_it_is_decoded(part: str) -> None:
    body = ('{"resourceSpans":[' + ",".join([part] * (json_encoding.MAX_VALUES + 1)) + "]}").encode()
    began = time.process_time()
    with pytest.raises(TooManyError):
        from_json(TRACES, body)
    assert time.process_time() - began < 8


@pytest.mark.parametrize("body", ["[]", "null", "7", '""', '[{"resourceSpans":[]}]'])
def test_a_body_that_is_no_object_is_malformed(body: str) -> None:
    with pytest.raises(MalformedError):
        from_json(TRACES, body.encode())


@pytest.mark.parametrize("start", ["[", '{"a":', '{"resourceSpans":[', '{"resourceSpans":[{"scopeSpans":['])
def test_deep_nesting_is_malformed(start: str) -> None:
    with pytest.raises(MalformedError):
        from_json(TRACES, start.encode() * 100_000)


def test_a_long_text_is_allowed_only_as_a_value() -> None:
    """An error of protobuf quotes the text, once for each level: a hundred times as much memory as the request."""
    long = "1" * (json_encoding.MAX_SHORT_TEXT + 1)

    def body(value: dict[str, Any]) -> bytes:
        for _ in range(20):
            value = {"arrayValue": {"values": [value]}}
        span = {"attributes": [{"key": "a", "value": value}]}
        return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()

    taken = from_json(TRACES, body({"stringValue": long}))
    assert long.encode() in taken
    assert ExportTraceServiceRequest.FromString(taken)
    with pytest.raises(MalformedError) as refused:
        from_json(TRACES, body({"intValue": long}))
    assert len(str(refused.value.__cause__)) < 1_000


def test_a_body_larger_than_is_decoded_is_refused() -> None:
    with pytest.raises(TooManyError, match="larger than"):
        from_json(TRACES, b'{"resourceSpans":[]}' + b" " * json_encoding.MAX_BYTES)


def test_an_integer_that_no_double_can_hold_is_malformed() -> None:
    """Found by ``make fuzz``: protobuf's JSON parser lets Python's OverflowError pass."""
    body = b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[{"asDouble":1%s}]}}]}]}]}' % (
        b"0" * 400
    )
    with pytest.raises(MalformedError):
        from_json(METRICS, body)
