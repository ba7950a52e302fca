"""The last attributes of a monitor's span, which no two calls of a rank have in common, read without decoding them."""

from __future__ import annotations

import re
from typing import NamedTuple

from otel_fr import semconv as names


def _integer(key: str) -> bytes:
    """A pattern of a `Span.attributes` entry of this key: its length, the length of its value, and an integer.

    Nine bytes hold 63 bits: a number in ten bytes may be negative.
    """
    start = b"\x0a" + bytes((len(key),)) + key.encode() + b"\x12"
    return b"\x4a(.)" + re.escape(start) + rb"(.)\x18([\x80-\xff]{0,8}[\x00-\x7f])"


_USUAL_KEYS = (names.SEQUENCE_ID, names.OP_ID, names.RECORD_ID, names.STEP)
_USUAL_TAIL = re.compile(b"%b%b%b(?:%b)?" % tuple(map(_integer, _USUAL_KEYS)), re.DOTALL)
_SEQUENCE_SIZE, _OP_SIZE, _RECORD_SIZE, _STEP_SIZE = (len(key) + 5 for key in _USUAL_KEYS)
"""Bytes of such an entry without its tag, its length and its integer."""
_INTEGERS = (3, 6, 9, 12)
"""The groups of the pattern that are integers."""


class _Form(NamedTuple):
    """Of tails that differ in their integers only, and these by their values and not by their sizes.

    Attributes:
        mask: the bits that are the same in all of them, as a little-endian integer: all but the values of the integers.
        bits: what they are.
        sequence, record: where these two integers are.
    """

    mask: int
    bits: int
    sequence: slice
    record: slice


class TailReader:
    """Reads tails; of those that are like one before, all that is not a value is compared at once."""

    def __init__(self) -> None:
        self._forms: dict[int, _Form] = {}
        """By the length of a tail, the form of the last one that was not of the form before."""

    def read(self, piece: bytes) -> tuple[int, int] | None:
        """Sequence id and record of a tail as monitors write it; None: it must be decoded.

        Decoding would take many times as long, which the first of the ranks that make a call would pay for each call.
        """
        form = self._forms.get(len(piece))
        if form is not None:
            mask, bits, sequence, record = form
            if int.from_bytes(piece, "little") & mask == bits:
                return _number(piece[sequence]), _number(piece[record])
        found = _match(piece)
        if found is None:
            return None
        form = self._forms[len(piece)] = _form_of(piece, found)
        return _number(piece[form.sequence]), _number(piece[form.record])


def _match(piece: bytes) -> re.Match[bytes] | None:
    """The tail's parts; None: it is not as monitors write it."""
    found = _USUAL_TAIL.fullmatch(piece)
    if found is None:
        return None
    a, b, sequence, c, d, op, e, f, record, g, h, step = found.groups()  # in between: lengths
    if a[0] != len(sequence) + _SEQUENCE_SIZE or c[0] != len(op) + _OP_SIZE or e[0] != len(record) + _RECORD_SIZE:
        return None
    if b[0] != len(sequence) + 1 or d[0] != len(op) + 1 or f[0] != len(record) + 1:
        return None
    if step is not None and (g[0] != len(step) + _STEP_SIZE or h[0] != len(step) + 1):
        return None
    return found


def _form_of(piece: bytes, found: re.Match[bytes]) -> _Form:
    mask = bytearray(b"\xff" * len(piece))
    for group in _INTEGERS:
        start, end = found.span(group)
        mask[max(start, 0) : max(end, 0)] = b"\x80" * (end - start)  # -1: no step. The bit says whether more follows
    bits = int.from_bytes(mask, "little")
    places = [slice(*found.span(group)) for group in _INTEGERS]
    return _Form(bits, int.from_bytes(piece, "little") & bits, places[0], places[2])


def _number(varint: bytes) -> int:
    """An unsigned integer in protobuf's encoding."""
    number = shift = 0
    for byte in varint:
        number |= (byte & 0x7F) << shift
        shift += 7
    return number
