"""Decodes log records as far as rank reports need: the time, the event's name, the body's text and text attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from google.protobuf.message import DecodeError

from otel_fr_collector.otlp.message_classes import Field, make_classes
from otel_fr_collector.otlp.signals import MalformedError
from otel_fr_collector.otlp.wire import COUNT_ITEM_FROM, TooManyError, find_fields

MAX_RECORD = (4 << 20) + (64 << 10)
"""Largest log record in bytes: the longest rank report (`otel_fr.rank_report.MAX_LENGTH`) with its attributes."""
MAX_FIELDS = 256
"""Fields of a log record. Most are attributes; by default, SDKs send at most 128 attributes."""
_EVENT_NAME = "event.name"
"""Attribute with the event's name. SDKs that do not send the field ``event_name`` send it."""
_NO_TAG = -1
_TOO_MANY = f"a log record has more than {MAX_FIELDS} fields"
_RECORD = make_classes(
    "otel_fr.log_record",
    {
        "Record": [
            Field("time_unix_nano", 1, "fixed64"),
            Field("body", 5, "Value"),
            Field("attributes", 6, "KeyValue", repeated=True),
            Field("event_name", 12, "string"),
        ],
        "KeyValue": [Field("key", 1, "string"), Field("value", 2, "Value")],
        "Value": [Field("string_value", 1, "string")],
    },
)["Record"]
"""The fields of opentelemetry-proto's `LogRecord` that are read."""


class _Attribute(Protocol):
    key: str
    value: Any


class _Record(Protocol):
    time_unix_nano: int
    body: Any
    attributes: Sequence[_Attribute]
    event_name: str


class LogRecord:
    """One log record.

    Attributes:
        event_name: "" if the record is not an event.
    """

    def __init__(self, record: _Record) -> None:
        self._record = record
        self.event_name = record.event_name or self.text(_EVENT_NAME)

    @property
    def time(self) -> float:
        """Unix time in seconds by the sender's clock. 0 if the record has none."""
        return self._record.time_unix_nano / 1e9

    @property
    def body(self) -> str:
        """The body's text, or ""."""
        return cast("str", self._record.body.string_value)

    def text(self, key: str) -> str:
        """A text attribute's value, or ""."""
        return next((item.value.string_value for item in self._record.attributes if item.key == key), "")


def read_record(data: bytes) -> LogRecord:
    """Decode a log record.

    Raises:
        ValueError: the bytes are not a log record, or it is too large.
    """
    if len(data) > MAX_RECORD:
        raise ValueError(f"a log record is larger than {MAX_RECORD} bytes")
    try:
        if len(data) > COUNT_ITEM_FROM:
            find_fields(data, _NO_TAG, MAX_FIELDS)
        record = _RECORD.FromString(data)
    except TooManyError as error:
        raise ValueError(_TOO_MANY) from error
    except (DecodeError, MalformedError) as error:
        raise ValueError("a log record cannot be decoded") from error
    if len(record.attributes) > MAX_FIELDS:
        raise ValueError(_TOO_MANY)
    return LogRecord(record)
