"""The JSON texts of the status area: the meta, which describes the rank, and uncaught exceptions."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping

from otel_fr.ring.layout import DOCUMENT

_NUMBER = struct.Struct("<Q")


def pack(values: Mapping[str, object], number: int, room: int) -> bytes:
    """Return a JSON text with its length, crc and number, in at most ``room`` bytes.

    If the text is too long, the longest value loses its middle, or is left out if it is short or not a string. This is
    repeated until the text fits. ``truncated`` is then true. Values that JSON cannot represent are written as ``str``.
    """
    text = _encode(values)
    if len(text) > room - DOCUMENT.size:
        text = _shorten(dict(values), room - DOCUMENT.size)
    crc = zlib.crc32(text, zlib.crc32(_NUMBER.pack(number)))
    return DOCUMENT.pack(len(text), crc, number) + text


def unpack(data: bytes) -> tuple[int, dict[str, object]] | None:
    """Return (number, values) of the text at the start of ``data``, or None if there is no valid text."""
    if len(data) < DOCUMENT.size:
        return None
    length, crc, number = DOCUMENT.unpack_from(data)
    text = data[DOCUMENT.size : DOCUMENT.size + length]
    if number == 0 or len(text) != length or zlib.crc32(text, zlib.crc32(_NUMBER.pack(number))) != crc:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return (number, values) if isinstance(values, dict) else None


def _encode(values: Mapping[str, object]) -> bytes:
    return json.dumps(dict(values), default=str, separators=(",", ":")).encode()


def _shorten(values: dict[str, object], room: int) -> bytes:
    values["truncated"] = True
    while len(text := _encode(values)) > room:
        longest = max((key for key in values if key != "truncated"), key=lambda key: len(_encode({key: values[key]})))
        value = values[longest]
        if isinstance(value, str) and len(value) > 64:
            quarter = len(value) // 4
            values[longest] = value[:quarter] + " ... " + value[-quarter:]
        else:
            del values[longest]
    return text
