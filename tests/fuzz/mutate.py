"""Mutations of bytes, of the structure of protobuf messages, and of JSON-like data, all from a `random.Random`."""

from __future__ import annotations

import copy
import json
import random
import struct
from dataclasses import dataclass
from typing import Any

MAX_SIZE = 2 << 20
"""Most bytes of a mutated input. Other tests cover larger inputs."""
MAX_REPEATED = 20_000
"""Most bytes of a repeated part of an input. Repeated parts may be repeated again."""
MAX_DEPTH = 24
"""Levels of a message that are parsed. Deeper messages stay bytes."""
NUMBERS = (0, 1, 2, 127, 128, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "\0",
    "\ud800",
    "\udcff" * 40,
    "\U0010ffff\u202e\x1b[31m",
    "9" * 5_000,
    "-1",
    "0-99999999999",
    "0-3,7",
    "NaN",
    "None",
    "x" * 70_000,
    "\n" * 3_000,
    "../../../etc/passwd",
    "<script>",
    "{" * 2_000,
    "[" * 100_000,
    '{"a":' * 900,
)


def mutate_bytes(rnd: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """Change, cut out or double some pieces, or replace them by pieces of another input."""
    changed = bytearray(data or b"\0")
    for _ in range(rnd.choice((1, 1, 2, 4, 16))):
        at = rnd.randrange(len(changed) + 1)
        size = rnd.choice((0, 1, 1, 2, 4, 8, 64, 500))
        start = rnd.randrange(len(other) + 1)
        piece = rnd.choice(
            (
                rnd.randbytes(size),
                other[start : start + size],
                bytes(changed[at : at + size]) * rnd.choice((2, 3, 50)),
                b"",
                struct.pack("<Q", rnd.choice(NUMBERS))[: rnd.choice((1, 2, 4, 8))],
                bytes([rnd.choice((0, 0x7F, 0x80, 0xFF))]) * size,
            )
        )
        changed[at : at + rnd.choice((0, size, len(piece)))] = piece
        if not changed:
            changed = bytearray(b"\0")
    if rnd.random() < 0.1:
        del changed[rnd.randrange(len(changed)) :]
    return bytes(changed[:MAX_SIZE])


@dataclass
class Field:
    """A field of a protobuf message. ``value``: int, bytes, or the fields of a message."""

    number: int
    wire: int
    value: int | bytes | list[Field]


def parse_message(data: bytes, depth: int = 0) -> list[Field] | None:
    """Return the fields of a message; None: the bytes are no message."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        key = _varint(data, at)
        if key is None or key[0] >> 3 == 0:
            return None
        number, wire, at = key[0] >> 3, key[0] & 7, key[1]
        value: int | bytes | list[Field]
        if wire == 0:
            found = _varint(data, at)
            if found is None:
                return None
            value, at = found
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        elif wire == 2:
            length = _varint(data, at)
            if length is None or length[1] + length[0] > len(data):
                return None
            value, at = data[length[1] : length[1] + length[0]], length[1] + length[0]
            inner = parse_message(value, depth + 1) if value and depth < MAX_DEPTH else None
            value = value if inner is None else inner
        else:
            return None
        fields.append(Field(number, wire, value))
    return fields if at == len(data) else None


def write_message(fields: list[Field]) -> bytes:
    """Return the bytes of a message. Values that do not fit their wire type are written as they are."""
    out = bytearray()
    for field in fields:
        out += _write_varint(field.number << 3 | field.wire)
        value = write_message(field.value) if isinstance(field.value, list) else field.value
        if isinstance(value, int):
            out += _write_varint(value) if field.wire == 0 else struct.pack("<Q", value & (1 << 64) - 1)
        else:
            out += (_write_varint(len(value)) if field.wire == 2 else b"") + value
    return bytes(out)


def mutate_message(rnd: random.Random, data: bytes, other: bytes) -> bytes:
    """Change some fields of a protobuf message. If the data is no message, change bytes."""
    fields, others = parse_message(data), parse_message(other)
    if not fields:
        return mutate_bytes(rnd, data, other)
    try:
        for _ in range(rnd.choice((1, 1, 2, 5))):
            holder = _pick_holder(rnd, fields)
            if holder:
                _mutate_field(rnd, holder, rnd.randrange(len(holder)), _pick_holder(rnd, others) if others else [])
        return write_message(fields)[:MAX_SIZE]
    except RecursionError:  # nested too deep
        return mutate_bytes(rnd, data, other)


def _pick_holder(rnd: random.Random, fields: list[Field]) -> list[Field]:
    """Return the fields of the message, or of a random message inside."""
    while True:
        inner = [field.value for field in fields if isinstance(field.value, list) and field.value]
        if not inner or rnd.random() < 0.25:
            return fields
        fields = rnd.choice(inner)


def _mutate_field(rnd: random.Random, holder: list[Field], at: int, others: list[Field]) -> None:
    field = holder[at]
    match rnd.randrange(9):
        case 0:
            del holder[at]
        case 1:
            size = len(write_message([field]))
            holder[at:at] = [field] * min(rnd.choice((1, 3, 300)), MAX_REPEATED // (size + 1))
        case 2:
            field.number = rnd.choice((1, 2, 3, 9, 15, 16, 2_047, 2**29 - 1, max(1, field.number ^ 1)))
        case 3:
            field.wire = rnd.choice((0, 1, 2, 5, 3, 4, 6, 7))
        case 4 if others:
            holder.insert(at, copy.deepcopy(rnd.choice(others)))
        case 5:
            depth = rnd.choice((1, 10, 110))
            for _ in range(depth):
                field = Field(holder[at].number, 2, [field])
            holder[at] = field
        case 6:
            rnd.shuffle(holder)
        case _:
            field.value = _other_value(rnd, field)


def _other_value(rnd: random.Random, field: Field) -> int | bytes:
    if field.wire == 0:
        return rnd.choice(NUMBERS)
    if field.wire in (1, 5) and isinstance(field.value, bytes):
        packed = rnd.choice((struct.pack("<d", rnd.choice(FLOATS)), struct.pack("<Q", rnd.choice(NUMBERS))))
        return packed[: len(field.value)]
    own = write_message(field.value) if isinstance(field.value, list) else field.value
    own = own if isinstance(own, bytes) else b""
    text = rnd.choice(TEXTS).encode("utf-8", "surrogatepass")
    return rnd.choice((text, text, b"\xff" + own, own * 2, own[: len(own) // 2], mutate_bytes(rnd, own)))


def mutate_data(rnd: random.Random, data: Any) -> Any:
    """Return a copy of JSON-like data with some values, keys, lengths or depths changed."""
    changed = json_copy(data)
    for _ in range(rnd.choice((1, 1, 2, 5))):
        holder = _pick_container(rnd, changed)
        if isinstance(holder, dict) and holder:
            key = rnd.choice(list(holder))
            match rnd.randrange(6):
                case 0:
                    del holder[key]
                case 1:
                    holder[rnd.choice(TEXTS)] = holder.pop(key)
                case 2:
                    holder[key], holder[other] = holder[other := rnd.choice(list(holder))], holder[key]
                case _:
                    holder[key] = _odd(rnd, holder[key])
        elif isinstance(holder, list) and holder:
            at = rnd.randrange(len(holder))
            match rnd.randrange(5):
                case 0:
                    del holder[at]
                case 1:
                    holder[at:at] = _repeated(holder[at], rnd.choice((1, 3, 400)))
                case 2:
                    rnd.shuffle(holder)
                case _:
                    holder[at] = _odd(rnd, holder[at])
        elif not isinstance(changed, (dict, list)) or not changed:
            changed = _odd(rnd, changed)
    return changed


def json_copy(data: Any) -> Any:
    """Return a copy of nested dicts and lists. Tuples are not copied."""
    if isinstance(data, dict):
        return {key: json_copy(value) for key, value in data.items()}
    return [json_copy(value) for value in data] if isinstance(data, list) else data


def _pick_container(rnd: random.Random, data: Any) -> Any:
    while True:
        values = list(data.values()) if isinstance(data, dict) else data if isinstance(data, list) else []
        inner = [value for value in values if isinstance(value, (dict, list)) and value]
        if not inner or rnd.random() < 0.25:
            return data
        data = rnd.choice(inner)


def _odd(rnd: random.Random, value: Any) -> Any:
    """Return another value, of the same type or of another type."""
    nested: Any = value
    match rnd.randrange(7):
        case 0:
            return rnd.choice((*NUMBERS, *(-number for number in NUMBERS), 10**400))
        case 1:
            return rnd.choice(FLOATS)
        case 2:
            return rnd.choice(TEXTS)
        case 3:
            return rnd.choice((None, True, False, [], {}, [[]], [None], {"": None}))
        case 4 if isinstance(value, str):
            return rnd.choice((value * 2, value[: len(value) // 2], value + rnd.choice(TEXTS), value.upper()))
        case 4 if isinstance(value, (int, float)) and not isinstance(value, bool):
            return rnd.choice((-value, value + 1, value * 2, str(value)))
        case 5:
            for _ in range(rnd.choice((1, 30, 500))):
                nested = [nested]
            return nested
        case _:
            return _repeated(value, rnd.choice((1, 2, 2_000)))


def _repeated(value: Any, times: int) -> list[Any]:
    """Return a list with the value so many times, or fewer times if the list would be too large."""
    return [value] * max(1, min(times, MAX_REPEATED // (1 + _weight(value))))


def _weight(value: Any) -> int:
    """Return the approximate size of the value's JSON in bytes."""
    weight = 0
    stack = [value]
    while stack and weight < MAX_REPEATED:
        one = stack.pop()
        if isinstance(one, (dict, list, tuple)):
            stack += one
            stack += one.values() if isinstance(one, dict) else ()
        weight += len(one) if isinstance(one, str) else 8
    return weight


def dumps(rnd: random.Random, data: Any) -> bytes:
    """Return JSON, which may have NaN and lone surrogates, mostly escaped. Sometimes bytes are changed."""
    try:
        text = json.dumps(data, ensure_ascii=rnd.random() < 0.8)
    except (RecursionError, ValueError):  # too deep, or an integer is too long, for Python to write
        text = "[" * 2_000
    raw = text.encode("utf-8", "surrogatepass")[:MAX_SIZE]
    return mutate_bytes(rnd, raw) if rnd.random() < 0.15 else raw


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    return None


def _write_varint(value: int) -> bytes:
    value &= (1 << 70) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
