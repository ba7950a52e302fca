"""Cuts monitors' spans into pieces that many spans have in common, so that each piece is looked up separately.

A serialised message is the concatenation of its fields, so a span may be cut between any two of them. Where to cut is a
guess at how monitors write: the reader of the pieces checks that they are whole fields.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_fr import semconv as names

MAX_LAYOUTS = 4_096
"""Lengths of spans for which the cuts are remembered."""
MAX_RANKS = 16_384
"""Rank attributes that are remembered."""

# A span as written by every encoder that writes fields in their order, as protobuf recommends and OTLP's
# implementations do: ids; name and kind; times; attributes; status. Tags and lengths: a field's number * 8 + its type.
_IDS = struct.Struct("<H16xH8xBB")
"""trace_id, span_id, each after its tag and length; the tag of the next field, and its length."""
TRACE_ID, SPAN_ID = 0x100A, 0x0812
"""Tag and length of each."""
_NAME, _KIND, _ATTRIBUTE = 0x2A, 0x30, 0x4A
_NAME_AT = 28
"""Where the name begins: after the ids."""
_NAME_AND_KIND = 4
"""Bytes of name and kind besides the name's text."""
_ONE_BYTE = 0x80
"""Lengths and numbers below this are encoded in one byte."""
_TIMES = struct.Struct("<BQBQ")
"""start_time_unix_nano and end_time_unix_nano, each after its tag."""
_START, END = 0x39, 0x41
"""Tags of the two times."""
_SEQUENCE = b"\x0a" + bytes((len(names.SEQUENCE_ID),)) + names.SEQUENCE_ID.encode() + b"\x12"
"""The beginning of the sequence id's `KeyValue`: its key, and the tag of its value."""
_OUTER = 2
"""Bytes of the tag and the length before it."""
_TIMES_SIZE = _TIMES.size
_SHORTEST = _NAME_AT + _NAME_AND_KIND + _TIMES_SIZE
_RANK_KEY = b"\x0a" + bytes((len(names.RANK),)) + names.RANK.encode() + b"\x12"
"""The beginning of the rank's `KeyValue`, which monitors send as the first attribute."""

_LINK = b"\x6a\x1c\x0a\x10"
"""Beginning of a link to the span in which the call was made. It differs on each rank, so it is cut off."""
_LINK_SIZE = 30

_DEVICE = b"\x4a" + bytes((2 + len(names.DEVICE_DELAY) + 11,)) + b"\x0a" + bytes((len(names.DEVICE_DELAY),))
_DEVICE += names.DEVICE_DELAY.encode() + b"\x12\x09\x21"
_DEVICE_SIZE = 2 * (4 + 3 + 8) + len(names.DEVICE_DELAY) + len(names.DEVICE_DURATION)
"""Bytes of the two device attributes. Monitors send them together, last before the links; they are cut off as well."""
_DOUBLE = struct.Struct("<d")
_MAX_MILLISECONDS = 1e12

Layout = tuple[Callable[[bytes], tuple[Any, ...]], bytes, bytes, int]
"""How to cut spans of the same length as one that was read. Not a `NamedTuple`: unpacking one takes ten times as long.

* unpack: splits a span into the tags of its two ids; the tag and length of its name; what is between the name and the
  start time; start time; tag of the end time; end time; the rank's attribute; head; tail.
* opening, middle: the required values of the third and the fourth of these.
* rest: number of bytes that are cut off.
"""


class Cut(NamedTuple):
    """A span's pieces; times in Unix nanoseconds.

    Attributes:
        own: the rank attribute. It is in no cache key, because other ranks make equal calls.
        head: the attributes that equal calls have in common. tail: the attributes of this call.
        opening, middle, name, rest: see `Layout`; ``name``: its length.
    """

    own: bytes
    head: bytes
    tail: bytes
    start: int
    end: int
    opening: bytes
    middle: bytes
    name: int
    rest: int

    def layout(self) -> Layout:
        unpack = _struct_of(self.name, len(self.own), len(self.head), len(self.tail), self.rest).unpack
        return unpack, self.opening, self.middle, self.rest


@functools.lru_cache(MAX_LAYOUTS)
def _struct_of(name: int, own: int, head: int, tail: int, rest: int) -> struct.Struct:
    return struct.Struct(f"<H16xH8x2s{name}x3sQBQ{own}s{head}s{tail}s{rest}x")


def cut(span: bytes) -> Cut | None:
    """Cut a span into pieces; None: it does not have the form in which monitors send spans."""
    at = span.rfind(_SEQUENCE) - _OUTER
    if at <= _SHORTEST:
        return None
    trace_tag, span_tag, tag, length = _IDS.unpack_from(span)
    named = _NAME_AT + _NAME_AND_KIND + length
    shared = named + _TIMES_SIZE
    if shared >= at or trace_tag != TRACE_ID or span_tag != SPAN_ID or tag != _NAME or length >= _ONE_BYTE:
        return None
    start_tag, start, end_tag, end = _TIMES.unpack_from(span, named)
    if span[named - 2] != _KIND or span[named - 1] >= _ONE_BYTE or start_tag != _START or end_tag != END:
        return None
    own = _rank_of(span, shared)
    last = without_rest(span, at)
    opening, middle = span[_NAME_AT : _NAME_AT + _OUTER], span[named - 2 : named + 1]
    head, tail = span[shared + len(own) : at], span[at:last]
    return Cut(own, head, tail, start, end, opening, middle, length, len(span) - last)


def without_rest(span: bytes, at: int) -> int:
    """Index at which the fields to cut off begin; not before ``at``."""
    last = len(span)
    while span.startswith(_LINK, last - _LINK_SIZE, last) and last - _LINK_SIZE >= at:
        last -= _LINK_SIZE
    if span.startswith(_DEVICE, last - _DEVICE_SIZE, last) and last - _DEVICE_SIZE >= at:
        last -= _DEVICE_SIZE
    return last


def device_time(span: bytes, at: int) -> float | None:
    """Seconds that the device spent in the call; ``at``: as `without_rest` returns it. None: not known."""
    if not span.startswith(_DEVICE, at):
        return None
    return seconds_of(_DOUBLE.unpack_from(span, at + _DEVICE_SIZE - _DOUBLE.size)[0])


def seconds_of(milliseconds: float) -> float | None:
    """Convert to seconds; None: it is not a valid time."""
    return milliseconds / 1e3 if 0 <= milliseconds < _MAX_MILLISECONDS else None


def decode(piece: bytes) -> Span | None:
    """Decode a piece of a span; None: it has incomplete fields, or times."""
    try:
        span = Span.FromString(piece)
    except DecodeError:
        return None
    return None if span.start_time_unix_nano or span.end_time_unix_nano else span


def _rank_of(span: bytes, at: int) -> bytes:
    """The attribute that begins at ``at``, if it is the rank's; otherwise no bytes."""
    if span[at] != _ATTRIBUTE or not span.startswith(_RANK_KEY, at + 2):
        return b""
    piece = span[at : at + 2 + span[at + 1]]
    decoded = decode(piece)
    return piece if decoded is not None and [item.key for item in decoded.attributes] == [names.RANK] else b""
