"""Turns the bytes of a dump into plain Python values, without running any code in them.

A pickle is a program: it can import a name and call the object. Here it finds no name, so it can only build plain
values. The process that reads the file has limits on time and memory (`processes`).
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
TOO_DEEP = "nested too deeply for a flight-recorder file"
SEVERAL = (
    "several flight-recorder files in one: give each rank a file of its own, whose name ends with the rank (trace_0)"
)
UNPACKED = 8 * MIB
UNPACKED_PER_BYTE = 500
"""A gzip file may unpack to `UNPACKED` bytes plus this many times its size. JSON of calls with stacks of 40 frames
unpacks to 84 times its size, and with 250 frames to 330 times. Deflate can reach 1,032 times."""
_LOOK_AHEAD = 256 * 1024


class UnreadableDump(Exception):  # noqa: N818 - the file is at fault
    """A file cannot be used. The text says what is wrong with it and what to do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What reading one file may cost. `processes` has the limits on memory.

    Attributes:
        max_bytes: size of the file. An unpacked gzip file also has the limit of `UNPACKED`.
        seconds: CPU time. Each MiB of the file adds one second.
    """

    max_bytes: int = 512 * MIB
    seconds: float = 5.0


DEFAULT_LIMITS = Limits()


def read_bytes(path: Path, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Read a file's bytes, and unpack a gzip file.

    Raises:
        UnreadableDump: the file is not regular, empty, too large, not readable, or a damaged gzip file.
    """
    try:
        if not path.is_file():  # a pipe or a device would block
            raise UnreadableDump("not a regular file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > limits.max_bytes:
                raise _too_large(limits)
            data = file.read(limits.max_bytes + 1)  # it may grow
    except OSError as error:
        raise not_opened(error) from error
    if not data:
        raise UnreadableDump(
            "empty: the disk was full or the writer was killed; look for the rank's file in another folder"
        )
    if data[:2] == b"\x1f\x8b":
        data = _unpack(data, limits)
    if len(data) > limits.max_bytes:
        raise _too_large(limits)
    return data


def not_opened(error: OSError) -> UnreadableDump:
    """The error of a file that the system does not let us read."""
    return UnreadableDump(f"cannot be read: {error.strerror or error}; check its permissions")


def _too_large(limits: Limits) -> UnreadableDump:
    return UnreadableDump(f"larger than {limits.max_bytes // MIB} MiB; record fewer entries, or raise the limit")


def _unpack(data: bytes, limits: Limits) -> bytes:
    most = min(limits.max_bytes, UNPACKED + UNPACKED_PER_BYTE * len(data))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            unpacked = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableDump(f"a damaged gzip file ({error}); copy it again") from error
    if most < len(unpacked) <= limits.max_bytes:
        raise UnreadableDump("unpacks to far more than a flight recorder's file of its size: do not load it")
    return unpacked


def parse(data: bytes) -> dict[str, Any]:
    """The dict in a pickle (of any protocol) or in JSON.

    Raises:
        UnreadableDump: the data is neither, or damaged, or a pickle that contains more than plain values.
        MemoryError, RecursionError: the pickle needs too much memory or is nested too deeply.
    """
    if data[:64].lstrip()[:1] in (b"{", b"["):
        value = _parse_json(data)
    # Protocols 0 and 1 have no mark at the beginning.
    elif data[:1] == b"\x80" or (data[:1] in b"(}]c" and data[-1:] == b"."):
        value = _parse_pickle(data)
    else:
        raise UnreadableDump("not a flight-recorder file: neither a pickle nor JSON")
    if isinstance(value, list) and value and isinstance(value[0], dict) and "profiling_name" in value[0]:
        return {"entries": value}  # as torch 2.2 wrote them
    if not isinstance(value, dict):
        if isinstance(value, list) and value and isinstance(value[0], dict) and "entries" in value[0]:
            raise UnreadableDump(SEVERAL)
        raise UnreadableDump(f"not a flight-recorder file: it holds a {type(value).__name__} instead of a dict")
    return value


def _parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError as error:
        raise UnreadableDump(TOO_DEEP) from error
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data" and error.doc[error.pos] == "{":
            raise UnreadableDump(SEVERAL) from error
        raise UnreadableDump(f"damaged or truncated JSON ({error}); copy it again") from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        raise UnreadableDump(
            f"a pickle that refers to {module}.{name}, as no flight-recorder file does: do not load it"
        )

    def persistent_load(self, pid: Any, /) -> Any:
        raise UnreadableDump("a pickle that refers to objects outside the file: do not load it")


def _parse_pickle(data: bytes) -> Any:
    # The unpickler reads ahead from a buffered reader. On any other file it makes one call per string.
    file = io.BufferedReader(io.BytesIO(data), _LOOK_AHEAD)
    try:
        value = _PlainUnpickler(file, encoding="utf-8", errors="replace").load()
    except (UnreadableDump, MemoryError, RecursionError):
        raise
    except Exception as error:
        if data[-1:] != pickle.STOP:
            raise UnreadableDump(
                "truncated: the pickle does not end; the disk was full or the writer was killed"
            ) from error
        raise UnreadableDump(f"damaged pickle ({type(error).__name__}: {error}); copy it again") from error
    if file.read(1) == b"\x80":
        raise UnreadableDump(SEVERAL)
    return value
