"""Makes OTLP attributes from plain values (opentelemetry/proto/common/v1/common.proto), for monitor and traces.

For what changes from span to span, the monitor uses prepared bytes (`otel_fr.monitor.telemetry.span_builder`).
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from otel_fr.encodable import encodable

_INT64 = 1 << 63


def attribute(key: str, value: object) -> KeyValue:
    """Make one attribute: an integer, a truth value, a list of such values, or text (for any other value, its text)."""
    return KeyValue(key=encodable(key), value=_any_value(value))


def attributes(values: Mapping[str, object]) -> list[KeyValue]:
    """Make the attributes of all values that are not None."""
    return [attribute(key, value) for key, value in values.items() if value is not None]


def utf8(value: object) -> str:
    """Return the value's text. Lone surrogates (from files, exceptions) become ``?``, because protobuf refuses them."""
    return encodable(str(value))


def _any_value(value: object) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return AnyValue(int_value=value)
    if isinstance(value, (list, tuple)):
        return AnyValue(array_value=ArrayValue(values=[_any_value(item) for item in value]))
    return AnyValue(string_value=utf8(value))
