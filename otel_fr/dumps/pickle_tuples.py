"""Checks that no tuple of a pickle contains another: else a few bytes can build a key whose hash takes unbounded time.

``t1 = (t0, t0)``, ``t2 = (t1, t1)``, ... doubles the time that hashing takes with every line, and a dict hashes its
keys. Recorders write flat tuples only (the name and description of a process group).

`TupleCheck` proves it at almost no cost while `safe_parse` scans a file: each tuple is built from the pushes directly
before it, and none of the memo numbers that these read holds a tuple. Where that proof fails, `walk` follows the file
instruction by instruction.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterable

CODES = b"t\x85\x86\x87"
"""TUPLE, TUPLE1, TUPLE2, TUPLE3."""
MAX_ITEMS = 64
"""Items of one tuple: each use of it as a key hashes all of them."""
MAX_WALK = 128 * 1024 * 1024
"""Bytes that `walk` follows at most (about a microsecond each, at worst)."""

_MAX_GETS = 4096
_STEP = re.compile(
    rb"(?s:(?P<get>h.|j.{4})|(?P<put>q.|r.{4}|\x94)"
    rb"|(?P<simple>K.|M..|J.{4}|\x8a\x08.{8}|\x8a\x05.{5}|G.{8}|[N)\x88\x89])"
    rb"|(?P<mark>\()|(?P<other>\x95.{8}|\x80.|[}\]ldaseu\x86]))"
)
_PAIR = re.compile(rb"(?s)\x86(?<=(.{10})\x86)(?=(q.|r.{4}|)[hjX\x8c])")
"""A TUPLE2 in a row of instructions: (the ten bytes before it, the put after it), followed by a text or get."""
_MAX_PAIRS = 4_000_000
_SIMPLE, _TUPLE, _OTHER, _MARK = b"sto("
_ARGUMENT = {op.code.encode("latin-1")[0]: op.arg for op in pickletools.opcodes}


class NestedTuple(Exception):  # noqa: N818 - it is the file that is at fault
    """The pickle contains a tuple in a tuple, or a very long tuple; the text says which."""


class TupleCheck:
    """The proof for one file, built up while it is scanned.

    Attributes:
        doubtful: the proof failed.
    """

    def __init__(self) -> None:
        """For a file of which nothing has been scanned yet."""
        self.doubtful = False
        self._unnumbered = False
        self._gets: set[int] = set()
        self._puts: set[int] = set()

    def add(self, data: bytes, pieces: Iterable[tuple[int, int]], at: int) -> None:
        """Take account of a tuple instruction at ``at``.

        Args:
            pieces: (start, end) of runs of instructions that `_STEP` knows, the last one ending at ``at``, with one
                text between each two. The first run may begin at any instruction.
        """
        kinds: list[int | None] = []  # memo number of a get, -1: another simple push, None: anything else
        for index, (start, end) in enumerate(pieces):
            if index:
                kinds.append(-1)
            for step in _STEP.finditer(data, start, end):
                if step.lastgroup == "get":
                    kinds.append(_number(step[0]))
                elif step.lastgroup == "mark":
                    kinds.append(-2)
                elif step.lastgroup != "put":
                    kinds.append(-1 if step.lastgroup == "simple" else None)
        code = data[at]
        if code == CODES[0]:
            first = next((n for n in range(1, min(len(kinds), MAX_ITEMS + 1) + 1) if kinds[-n] == -2), 0)
            items = kinds[len(kinds) - first + 1 :] if first else [None]
        else:
            count = code - 0x84
            items = kinds[-count:] if len(kinds) >= count else [None]
        for item in items:
            if item is None or item == -2:
                self.doubtful = True
            elif item >= 0:
                self._gets.add(item)
        put = _STEP.match(data, at + 1)
        while put is not None and put.lastgroup == "put":
            if put[0] == b"\x94":
                self._unnumbered = True
            else:
                self._puts.add(_number(put[0]))
            put = _STEP.match(data, put.end())
        if data[at + 1 : at + 2] == b"p":
            self._unnumbered = True
        if len(self._gets) > _MAX_GETS:
            self.doubtful = True

    def proven(self, data: bytes, rows_get: bool, rows_put: bool) -> bool:
        """True if no tuple of the file contains a tuple.

        Args:
            rows_get, rows_put: tuples that were not passed to `add` may be built from gets, or put into the memo. All
                of these are a TUPLE2 of two texts, two gets, or a text and a get, followed by another text or get.
        """
        if self.doubtful:
            return False
        if not (self._puts or rows_put or self._unnumbered) or not (self._gets or rows_get):
            return True
        if self._unnumbered:
            return False
        if not (rows_get or rows_put):
            return not self._gets & self._puts
        # Searched without following the instructions, so some matches may be parts of texts or times.
        if data.count(b"\x86") > _MAX_PAIRS:
            return False
        gets = set(self._gets)
        found = _PAIR.findall(data)
        for tail in {tail for tail, _ in found}:
            for rest, number in _got(tail):
                gets.add(number)
                gets.update(other for _, other in _got(rest))
        put = {put for _, put in found}
        return not gets & self._puts and not any(
            b"r" + number.to_bytes(4, "little") in put or (number < 256 and b"q%c" % number in put) for number in gets
        )


def _got(tail: bytes) -> list[tuple[bytes, int]]:
    """The gets that ``tail`` may end with: (the bytes before it, memo number of the get)."""
    found = []
    if tail[-2:-1] == b"h":
        found.append((tail[:-2], tail[-1]))
    if tail[-5:-4] == b"j":
        found.append((tail[:-5], int.from_bytes(tail[-4:], "little")))
    return found


def _number(instruction: bytes) -> int:
    return int.from_bytes(instruction[1:], "little")


def walk(data: bytes) -> None:
    """Execute the file as the unpickler will, but keep only the kind of each value.

    Raises:
        NestedTuple: a tuple in a tuple, a tuple of more than `MAX_ITEMS`, or a file of more than `MAX_WALK` bytes.
    """
    if len(data) > MAX_WALK:
        raise NestedTuple(f"tuples that may contain each other, in more than {MAX_WALK >> 20} MiB")
    stack = bytearray()
    memo = bytearray(1 << 16)
    used = position = 0
    end = len(data)
    while position < end:
        code = data[position]
        argument: object = None
        if code in b"(01.)}]tldaseu\x85\x86\x87\x88\x89\x94N":
            position += 1
        else:
            argument, position = _argument(data, position)
        if code in b"hjg":
            if not isinstance(argument, int) or not 0 <= argument < len(memo) or not memo[argument]:
                return  # the unpickler will stop here
            stack.append(memo[argument])
        elif code in b"qrp\x94":
            number = used if code == 0x94 else argument
            if not stack or stack[-1] == _MARK or not isinstance(number, int) or not 0 <= number <= MAX_WALK:
                return
            if number >= len(memo):
                memo.extend(bytes(max(number + 1 - len(memo), len(memo))))
            used += not memo[number]
            memo[number] = stack[-1]
        elif code in b"}]":
            stack.append(_OTHER)
        elif code == 0x28:
            stack.append(_MARK)
        elif code in b"teuld":
            start = stack.rfind(_MARK)
            if start < 0:
                return
            if code == CODES[0]:
                _check_items(stack[start + 1 :], position)
                kind = _TUPLE if start + 1 < len(stack) else _SIMPLE
            else:
                kind = _OTHER
            del stack[start:]
            if code in b"tld":
                stack.append(kind)
        elif code in b"\x85\x86\x87":
            count = code - 0x84
            items = stack[-count:]
            if len(items) < count or _MARK in items:
                return
            _check_items(items, position)
            del stack[-count:]
            stack.append(_TUPLE)
        elif code in b"as0":
            count = 2 if code == 0x73 else 1
            if len(stack) < count or (code != 0x30 and _MARK in stack[-count:]):
                return
            del stack[-count:]
        elif code == 0x31:
            start = stack.rfind(_MARK)
            if start < 0:
                return
            del stack[start:]
        elif code == 0x2E:
            return
        elif code not in b"\x80\x95":
            stack.append(_SIMPLE)


def _check_items(items: bytearray, position: int) -> None:
    if _TUPLE in items:
        raise NestedTuple(f"a tuple in a tuple, at byte {position}")
    if len(items) > MAX_ITEMS:
        raise NestedTuple(f"a tuple of {len(items)} items, at byte {position}")


_WIDTHS = {"uint1": 1, "uint2": 2, "int4": 4, "uint4": 4, "uint8": 8, "float8": 8}
_COUNTS = {"string1": 1, "string4": 4, "unicodestring1": 1, "unicodestring4": 4, "unicodestring8": 8, "bytes1": 1}
_COUNTS |= {"bytes4": 4, "bytes8": 8, "long1": 1}


def _argument(data: bytes, position: int) -> tuple[object, int]:
    """The argument of the instruction at ``position`` if it is a number, and the position of the next instruction."""
    argument = _ARGUMENT[data[position]]
    name = argument.name if argument is not None else ""
    position += 1
    if name in _WIDTHS:
        end = position + _WIDTHS[name]
        return int.from_bytes(data[position:end], "little"), end
    if name in _COUNTS:
        start = position + _COUNTS[name]
        return None, start + int.from_bytes(data[position:start], "little")
    line = data.find(b"\n", position)
    text = data[position:line]
    return (int(text) if text.isdigit() and len(text) < 19 else None), line + 1 if line >= 0 else len(data)
