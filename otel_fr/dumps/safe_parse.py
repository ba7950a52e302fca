"""Bytes of a dump -> plain Python values, without running anything that is in them, in bounded time and memory.

A pickle is a program. Before Python's unpickler sees one, every instruction is checked against a list of those
that only build plain values; one that could import, call or build an object makes the file unreadable. The unpickler
itself refuses imports as well, in case the list is wrong.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import pickletools
import re
import time
import zlib
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_fr.dumps.pickle_rows import KnownRows
from otel_fr.dumps.pickle_tuples import CODES as TUPLE_CODES
from otel_fr.dumps.pickle_tuples import NestedTuple, TupleCheck, walk

MIB = 1024 * 1024


class UnreadableDump(Exception):  # noqa: N818 - it is the file that is at fault
    """A file that cannot be used; the text says what is wrong with it and what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What reading one file may cost.

    Attributes:
        max_bytes: size of the file, and of what a gzip file unpacks to.
        max_objects: lists, dicts and tuples in it (a recorded call has about ten).
    """

    max_bytes: int = 512 * MIB
    max_objects: int = 50_000_000


DEFAULT_LIMITS = Limits()


def read_bytes(path: Path, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The file's bytes, unpacked if it is a gzip file.

    Raises:
        UnreadableDump: not a regular file, empty, too large, not readable, or a damaged gzip file.
    """
    try:
        if not path.is_file():  # a pipe or a device would block
            raise UnreadableDump("not a regular file")
        with path.open("rb") as file:
            data = file.read(limits.max_bytes + 1)
    except OSError as error:
        raise UnreadableDump(f"cannot be read: {error.strerror or error}; check its permissions") from error
    if not data:
        raise UnreadableDump(
            "empty: the disk was full or the writer was killed; look for the rank's file in another folder"
        )
    if data[:2] == b"\x1f\x8b":
        data = _unpack(data, limits)
    if len(data) > limits.max_bytes:
        raise UnreadableDump(f"larger than {limits.max_bytes // MIB} MiB; record fewer entries, or raise the limit")
    return data


def _unpack(data: bytes, limits: Limits) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            return file.read(limits.max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableDump(f"a damaged gzip file ({error}); copy it again") from error


def parse(data: bytes, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    """The dict that a pickle (any protocol) or JSON file holds.

    Raises:
        UnreadableDump: neither a pickle nor JSON, damaged, too large, or a pickle that contains more than plain values.
    """
    if data[:64].lstrip()[:1] in (b"{", b"["):
        value = _parse_json(data, limits)
    # Protocols 0 and 1 have no mark of their own.
    elif data[:1] == b"\x80" or (data[:1] in b"(}]c" and data[-1:] == b"."):
        value = _parse_pickle(data, limits)
    else:
        raise UnreadableDump("not a flight-recorder file: neither a pickle nor JSON")
    if isinstance(value, list) and value and isinstance(value[0], dict) and "profiling_name" in value[0]:
        return {"entries": value}  # as torch 2.2 wrote them
    if not isinstance(value, dict):
        raise UnreadableDump(f"not a flight-recorder file: it holds a {type(value).__name__} instead of a dict")
    return value


def _parse_json(data: bytes, limits: Limits) -> Any:
    # Every value but the first of its list or dict follows a comma.
    if data.count(b",") + data.count(b"[") + data.count(b"{") > limits.max_objects:
        raise UnreadableDump(f"holds more than {limits.max_objects} values; record fewer entries")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise UnreadableDump("nested too deeply for a flight-recorder file") from error
    except ValueError as error:
        raise UnreadableDump(f"damaged or truncated JSON ({error}); copy it again") from error


_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
_PLAIN = b"|".join(
    (
        rb"[Kq\x80].",  # BININT1 BINPUT PROTO
        # A tuple that `TupleCheck.proven` finds itself: two gets, TUPLE2, a put or none, then a text or get.
        rb"(?P<get>(?:h.|j.{4}){2})\x86(?P<put>q.|r..[\x00-\x0f]\x00)?(?=[hjX\x8c])",
        rb"(?:h.|j.{4})(?![qrp\x94])",  # BINGET LONG_BINGET, unless put under another number
        rb"[(N}\])ldase\x88\x89\x94]",  # MARK NONE, containers, booleans, MEMOIZE: no argument
        rb"M..",  # BININT2
        rb"J.{4}",  # BININT
        rb"\x8a\x08.{8}",  # LONG1 of the sizes that times and thread ids have
        rb"\x8a\x05.{5}",
        rb"r..[\x00-\x0f]\x00",  # LONG_BINPUT with a number below 2**20: at most 16 MiB of memo
        rb"G.{8}",  # BINFLOAT
        rb"\x95..[\x00-\x0f]\x00{5}",  # FRAME of less than 1 MiB: the unpickler reads it whole
    )
)
"""Instructions that only build plain values, with no more memory than they take up in the file."""
_RUN = re.compile(b"(?s:(?:" + _PLAIN + b"){0,4000}u?)")
"""Instructions up to the end of a dict (SETITEMS), after which a known row of instructions may begin."""
_ROW_END = ord("u")
_KNOWN_ROWS = KnownRows()
_COUNTED = {  # -> width of the length that precedes the bytes
    "SHORT_BINUNICODE": 1,
    "BINUNICODE": 4,
    "BINUNICODE8": 8,
    "SHORT_BINSTRING": 1,
    "BINSTRING": 4,
    "SHORT_BINBYTES": 1,
    "BINBYTES": 4,
    "BINBYTES8": 8,
    "LONG1": 1,
}
_WITH_ARGUMENT = frozenset(["BININT1", "BINPUT", "PROTO", "BININT2", "BININT", "BINFLOAT"])
_DOUBTFUL = {"POP": 1, "POP_MARK": 1, "BINGET": 2, "LONG_BINGET": 5}
"""Allowed, though no pickler writes them in this position; -> their lengths in bytes."""
_LINES = frozenset(["INT", "LONG", "FLOAT", "STRING", "UNICODE", "GET", "PUT"])
"""Instructions of protocol 0, whose argument is a line of text."""
_MAX_DIGITS = 21
"""Characters of a 64-bit integer as text, with its sign or the letter L."""
_LONG_INTEGER = (
    "a pickle that contains an integer of more than 64 bits, which no flight recorder writes and which as a dict key"
    " can make loading take unbounded time: do not load it"
)
_CONTAINERS = (b"}", b"]", b"t", b"l", b"d", b"\x85", b"\x86", b"\x87")
"""Instructions that make a list, dict or tuple: one byte each, up to 72 bytes of memory."""
_MAX_LINE = 64 * 1024
_LOOK_AHEAD = 256 * 1024
_MAX_PIECES = 8
_MAX_SECONDS = 5.0
_MAX_SECONDS_PER_BYTE = 1.0 / MIB
"""CPU time that each byte adds; the unpickler takes about 0.02 s for 1 MiB of a recorder's file."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        raise UnreadableDump(
            f"a pickle that refers to {module}.{name}, as no flight-recorder file does: do not load it"
        )

    def persistent_load(self, pid: Any, /) -> Any:
        raise UnreadableDump("a pickle that refers to objects outside the file: do not load it")


class _Timed(io.RawIOBase):
    """These bytes as a file; reading fails once the unpickler has taken far longer than plain values need.

    Dict keys can be integers chosen to collide, and inserting each then takes time linear in their number.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = memoryview(data)
        self._at = 0
        self._until = time.thread_time() + _MAX_SECONDS

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if time.thread_time() > self._until:
            raise UnreadableDump("a pickle built to take unbounded time (its dict keys collide): do not load it")
        piece = self._data[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        self._until += len(piece) * _MAX_SECONDS_PER_BYTE
        return len(piece)


def _parse_pickle(data: bytes, limits: Limits) -> Any:
    _check(data, limits)
    try:
        # From a buffered reader the unpickler reads ahead; on any other file it makes one call per string.
        file = io.BufferedReader(_Timed(data), _LOOK_AHEAD)
        return _PlainUnpickler(file, encoding="utf-8", errors="replace").load()
    except UnreadableDump:
        raise
    except MemoryError as error:
        raise UnreadableDump("does not fit into memory; record fewer entries") from error
    except Exception as error:
        raise UnreadableDump(f"damaged pickle ({type(error).__name__}: {error}); copy it again") from error


def _check(data: bytes, limits: Limits) -> None:
    """Raise unless the first pickle in ``data`` builds plain values only, and no more of them than ``limits`` allows.

    Memory is bounded by the size of the file and the number of containers as long as each instruction allocates one
    value. The exception is "put at number N", for which the unpickler allocates N values; so N must be below 2**20 or
    the number of bytes read so far (picklers count from 0).
    """
    if sum(data.count(code) for code in _CONTAINERS) > limits.max_objects:
        raise UnreadableDump(f"holds more than {limits.max_objects} values; record fewer entries")
    tuples = TupleCheck()
    # Runs of instructions with a text between each two: what the next tuple may be built from.
    pieces: deque[tuple[int, int]] = deque(maxlen=_MAX_PIECES)
    start = position = 0
    end = len(data)
    get = put = False
    while position < end:
        if data[position - 1] == _ROW_END:
            after = _KNOWN_ROWS.skip(data, position)
            if after == position:
                after = _KNOWN_ROWS.look(data, position)
            if after > position:
                start = position = after
                pieces.clear()
                get, put = get or _KNOWN_ROWS.get, put or _KNOWN_ROWS.put
                continue
        run = _RUN.match(data, position)
        if run is not None and run.end() > position:
            position = run.end()
            get, put = get or run["get"] is not None, put or run["put"] is not None
            continue
        name = _NAMES.get(data[position], f"0x{data[position]:02x}")
        if name == "STOP":
            if not tuples.proven(data, get, put):
                _walk(data)
            return
        if name in _COUNTED:
            width = _COUNTED[name]
            pieces.append((start, position))
            size = int.from_bytes(data[position + 1 : position + 1 + width], "little")
            position += 1 + width + size
            if name == "LONG1" and (size > 9 or (size == 9 and data[position - 1 : position] != b"\0")):
                raise UnreadableDump(_LONG_INTEGER)
            start = position
        elif data[position] in TUPLE_CODES:
            pieces.append((start, position))
            tuples.add(data, pieces, position)
            pieces.clear()
            position += 1
            start = position
        elif name == "LONG_BINPUT":
            _check_memo(int.from_bytes(data[position + 1 : position + 5], "little"), position)
            position += 5
        elif name in _LINES:
            line = data.find(b"\n", position, position + _MAX_LINE)
            if line < 0:
                break
            text = data[position + 1 : line]
            if name in ("INT", "LONG") and len(text) > _MAX_DIGITS:
                raise UnreadableDump(_LONG_INTEGER)
            if name == "PUT":
                _check_memo(int(text) if text.isdigit() and len(text) < 19 else 1 << 62, position)
            start = position = line + 1
            pieces.clear()
        elif name in _DOUBTFUL:
            tuples.doubtful = True
            start = position = position + _DOUBTFUL[name]
            pieces.clear()
        elif name == "FRAME":
            raise UnreadableDump("a pickle with a frame far larger than picklers write: do not load it")
        elif name in _WITH_ARGUMENT:
            break  # it would have been part of the run if its argument were complete
        else:
            raise UnreadableDump(
                f"a pickle that contains more than plain values ({name} at byte {position}): do not load it;"
                " if a flight recorder wrote it, have it write the file again"
            )
    raise UnreadableDump("truncated: the pickle does not end; the disk was full or the writer was killed")


def _walk(data: bytes) -> None:
    try:
        walk(data)
    except NestedTuple as error:
        raise UnreadableDump(f"a pickle built to take unbounded time ({error}): do not load it") from error


def _check_memo(number: int, position: int) -> None:
    if number > max(position, 1 << 20):
        raise UnreadableDump("a pickle built to exhaust memory (a memo number far too high): do not load it")
