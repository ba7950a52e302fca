"""Plain values as OTLP attributes."""

from __future__ import annotations

from otel_fr.otlp_attributes import attribute, attributes


def test_text_integers_and_lists_keep_their_kind_and_none_is_left_out() -> None:
    found = {item.key: item.value for item in attributes({"a": "x", "b": -3, "c": ["y", 4], "d": None})}
    assert found.keys() == {"a", "b", "c"}
    assert found["a"].string_value == "x"
    assert found["b"].int_value == -3
    assert [item.WhichOneof("value") for item in found["c"].array_value.values] == ["string_value", "int_value"]


def test_what_protobuf_cannot_hold_is_sent_as_text() -> None:
    """A number over 64 bits and half a character come from damaged files and broken exceptions."""
    assert attribute("n", 1 << 63).value.string_value == str(1 << 63)
    assert attribute("n", -(1 << 63)).value.int_value == -(1 << 63)
    assert attribute("t", "a\ud800b").value.string_value == "a?b"
