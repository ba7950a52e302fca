"""The size of a protobuf message before it is decoded: how many fields it has, counted in its bytes.

Decoding makes an object of some 50 bytes of each submessage, and an empty submessage is two bytes on the wire (and two
bits of gzip). So the submessages of a large message are counted first.
"""

from __future__ import annotations

from otel_fr_collector.otlp.signals import MalformedError

MAX_CONTAINERS = 65_536
"""Fields of a request above its items: resources, scopes and what belongs to them. A batch of an OpenTelemetry
Collector (8,192 items by default) in which every item has its own resource has half as many."""
MAX_ITEMS = 262_144
"""Spans, log records or metrics of a request; 64 MiB of the smallest spans that otel-fr sends have as many."""
MAX_PART = 8 << 20
"""Bytes of one resource or item; rank reports have at most half as many."""
COUNT_ITEM_FROM = 64 << 10
"""Bytes of one item from which its fields are counted before it is decoded: fewer bytes hold few enough."""
COUNT_FROM = 512 * 1024
"""Bytes of a request from which its parts are counted before it is decoded: fewer bytes hold fewer items than are
allowed, and at most 262,144 resources and scopes, 10 MB when decoded."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types; groups (3, 4) do not occur in OTLP."""
_ENTRIES, _SCOPES, _ITEMS = 1 << 3 | _LENGTH, 2 << 3 | _LENGTH, 2 << 3 | _LENGTH
"""Tags: the resource_* of a request, the scope_* of these, and the items of these."""


class TooManyError(ValueError):
    """A message has more, or larger, fields than are taken."""


def too_many() -> TooManyError:
    """The error for a request of more parts than are taken."""
    return TooManyError(f"a request has more than {MAX_CONTAINERS} resources and scopes, or {MAX_ITEMS} items")


def check_request(data: bytes) -> None:
    """Check that a large request of any signal has no more parts than are taken, and none too large.

    Raises:
        TooManyError: it has.
        MalformedError: the bytes are not a protobuf message.
    """
    if len(data) < COUNT_FROM:
        return
    left = MAX_CONTAINERS
    scopes: list[tuple[int, int]] = []
    count, entries = find_fields(data, _ENTRIES, left)
    left -= count
    for at, end in entries:
        count, found = find_fields(data, _SCOPES, left, at, end)
        left -= count
        scopes += found
    left = MAX_ITEMS
    for at, end in scopes:
        left -= find_fields(data, _ITEMS, left, at, end, collect=False)[0]


def find_fields(  # noqa: C901, PLR0912
    data: bytes, wanted: int, most: int, at: int = 0, end: int | None = None, *, collect: bool = True
) -> tuple[int, list[tuple[int, int]]]:
    """The number of fields of a message, and where the contents of those with the tag ``wanted`` begin and end.

    Args:
        at, end: where the message begins and ends.
        collect: False: the second is left empty.

    Raises:
        TooManyError: it has more than ``most`` fields, or one of another tag that is larger than `MAX_PART`.
        MalformedError: the bytes are not a protobuf message.
    """
    end = len(data) if end is None else end
    found: list[tuple[int, int]] = []
    count = 0
    try:
        while at < end:
            if count >= most:
                raise too_many()
            count += 1
            tag = data[at]
            at += 1
            if tag > 127:
                tag, at = _varint(data, at - 1)
            kind = tag & 7
            if kind == _LENGTH:
                size = data[at]
                at += 1
                if size > 127:
                    size, at = _varint(data, at - 1)
                if tag == wanted and collect:
                    found.append((at, at + size))
                elif size > MAX_PART and at + size <= end:
                    raise TooManyError(f"a resource or item is larger than {MAX_PART} bytes")
                at += size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                raise MalformedError("the request is not an OTLP message")
    except IndexError:
        at = end + 1
    if at != end:
        raise MalformedError("the request is not an OTLP message")
    return count, found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends; a number of more than ten bytes ends the message."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError
