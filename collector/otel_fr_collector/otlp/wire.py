"""Counts the fields of a protobuf message before it is decoded.

Decoding makes an object of some 50 bytes for each submessage. An empty submessage takes only two bytes on the wire (and
two bits of gzip). So the submessages of a large message are counted first.
"""

from __future__ import annotations

from otel_fr_collector.otlp.signals import MalformedError

MAX_CONTAINERS = 65_536
"""Fields of a request above its items: resources, scopes and their other fields. A batch of an OpenTelemetry Collector
(8,192 items by default) has half as many if every item has its own resource."""
MAX_ITEMS = 262_144
"""Spans, log records or metrics of a request. 64 MiB of the smallest spans that otel-fr sends have this many."""
MAX_PART = 8 << 20
"""Bytes of one resource or item. Rank reports have at most half as many."""
COUNT_ITEM_FROM = 64 << 10
"""The fields of an item with more bytes are counted before it is decoded. A smaller item has few enough."""
COUNT_FROM = 512 * 1024
"""The parts of a request with at least this many bytes are counted before it is decoded. A smaller request cannot have
too many items, and has at most 262,144 resources and scopes, which take 10 MB when decoded."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types. Groups (3, 4) do not occur in OTLP."""
_ENTRIES, _SCOPES, _ITEMS = 1 << 3 | _LENGTH, 2 << 3 | _LENGTH, 2 << 3 | _LENGTH
"""Tags of a request's resource_*, of their scope_*, and of the items in these."""


class TooManyError(ValueError):
    """A message has too many fields, or too large ones."""


def too_many() -> TooManyError:
    """The error for a request with too many parts."""
    return TooManyError(f"a request has more than {MAX_CONTAINERS} resources and scopes, or {MAX_ITEMS} items")


def check_request(data: bytes) -> None:
    """Check the number and size of the parts of a large request of any signal.

    Raises:
        TooManyError: the request has too many parts, or one that is too large.
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
    """Count the fields of a message, and find where the contents of fields with the tag ``wanted`` begin and end.

    Args:
        at, end: where the message begins and ends.
        collect: whether to return the positions. False: the list is empty.

    Raises:
        TooManyError: the message has more than ``most`` fields, or a field that is not collected is larger than
            `MAX_PART`.
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
    """Decode the number that begins at ``at``. Return it, and where it ends.

    Raises:
        IndexError: the number has more than ten bytes, or the data ends in it.
    """
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
