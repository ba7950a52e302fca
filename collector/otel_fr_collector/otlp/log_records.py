"""Log records decoded only as far as rank reports need: the event's name, the text of the body, and text attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from otel_fr_collector.otlp.signals import MalformedError
from otel_fr_collector.otlp.wire import TooManyError, find_fields

MAX_RECORD = (4 << 20) + (64 << 10)
"""Bytes of a log record: the longest rank report (`otel_fr.rank_report.MAX_LENGTH`), and its attributes."""
MAX_FIELDS = 256
"""Fields of a log record, which are mostly its attributes; SDKs send at most 128 of them by default."""
_EVENT_NAME = "event.name"
"""Attribute with the event's name, from SDKs that do not send the field."""
_PACKAGE = "otel_fr.log_record"
_NO_TAG = -1


class _Attribute(Protocol):
    key: str
    value: Any


class _Record(Protocol):
    body: Any
    attributes: Sequence[_Attribute]
    event_name: str


class LogRecord:
    """One log record.

    Attributes:
        event_name: "" if it is not an event. body: its text, or "".
    """

    def __init__(self, record: _Record) -> None:
        self._record = record
        self.event_name = record.event_name or self.text(_EVENT_NAME)

    @property
    def body(self) -> str:
        return cast("str", self._record.body.string_value)

    def text(self, key: str) -> str:
        """A text attribute's value, or ""."""
        return next((item.value.string_value for item in self._record.attributes if item.key == key), "")


def read_record(data: bytes) -> LogRecord:
    """A log record.

    Raises:
        ValueError: the bytes are not a log record, or one that is too large.
    """
    if len(data) > MAX_RECORD:
        raise ValueError(f"a log record is larger than {MAX_RECORD} bytes")
    try:
        if len(data) > 2 * MAX_FIELDS:
            find_fields(data, _NO_TAG, MAX_FIELDS)
        return LogRecord(_RECORD.FromString(data))
    except TooManyError as error:
        raise ValueError(f"a log record has more than {MAX_FIELDS} fields") from error
    except (DecodeError, MalformedError) as error:
        raise ValueError("a log record cannot be decoded") from error


def _class() -> Any:
    """A message with those fields of opentelemetry-proto's `LogRecord` that are read."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="otel_fr/log_record.proto", package=_PACKAGE, syntax="proto3")
    many, one = field.LABEL_REPEATED, field.LABEL_OPTIONAL
    for name, fields in (
        ("Record", [("body", 5, one, "Value"), ("attributes", 6, many, "KeyValue"), ("event_name", 12, one, "")]),
        ("KeyValue", [("key", 1, one, ""), ("value", 2, one, "Value")]),
        ("Value", [("string_value", 1, one, "")]),
    ):
        message = file.message_type.add(name=name)
        for label, number, times, kind in fields:
            found = message.field.add(name=label, number=number, label=times)
            found.type = field.TYPE_MESSAGE if kind else field.TYPE_STRING
            if kind:
                found.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Record"))


_RECORD = _class()
