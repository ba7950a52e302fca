"""Writes flight-recorder files atomically, in PyTorch's schema as pickle or JSON (docs/reference/dump-format.md)."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal

from otel_fr.dumps.contents import DumpContents

__all__ = ["RECOVERED", "DumpContents", "TakenError", "is_ours", "write_dump"]

RECOVERED: Final = "recovered"
"""Reason of a file: the reason of the previous file no longer holds, and the rank has continued or ended well."""

_PICKLE_START = b"\x80\x02}X\x07\x00\x00\x00otel_fr"
"""Protocol 2, an empty dict and its first key. PyTorch's files begin with another key."""
_JSON_START = b'{"otel_fr": '
_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of link(2) on a file system that has no links."""
_BATCH = 256
"""Entries that share equal parts. The pickler keeps this many in memory."""


class TakenError(Exception):
    """A file already has the name of the new file."""


def is_ours(path: Path) -> bool:
    """Return whether otel-fr wrote the file. False if something else did, or if there is no file."""
    try:
        if not path.is_file():  # a pipe or a device would block
            return False
        with path.open("rb") as file:
            start = file.read(len(_PICKLE_START))
    except OSError:
        return False
    return start.startswith(_JSON_START) or start == _PICKLE_START


def write_dump(
    path: Path, contents: DumpContents, fmt: Literal["pickle", "json"] = "pickle", *, is_new: bool = False
) -> None:
    """Write ``contents`` to ``path`` atomically.

    A missing folder is created. Only the owner may read the folder and the file.

    Args:
        is_new: replace no file, not even otel-fr's own. On a file system without links, a file of otel-fr,
            or one that was created meanwhile, is replaced nevertheless.

    Raises:
        TakenError: ``path`` exists, and ``is_new``. The file is not changed.
        FileExistsError: ``path`` exists, and otel-fr did not write it. The file is not changed.
        OSError: the folder or file cannot be written. Nothing is left behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.path.lexists(path) and not is_ours(path):
        raise FileExistsError(f"{path} exists and was not written by otel-fr; it is left alone")
    with replacing(path, is_new=is_new) as file:
        (_write_json if fmt == "json" else _write_pickle)(file, contents)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(OSError):
        _sync_folder(path.parent)


@contextlib.contextmanager
def replacing(path: Path, *, is_new: bool = False) -> Iterator[BinaryIO]:
    """Provide a file that replaces ``path`` at the end. Only its owner may read it. If writing fails, it is removed.

    Raises:
        TakenError: ``path`` exists, and ``is_new``; see `write_dump`.
        OSError: the file cannot be written.
    """
    # Readers of all files in a folder skip names that start with a dot.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        if not is_new or not _link(temporary, path):
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _link(temporary: Path, path: Path) -> bool:
    """Give the file the name ``path``, which no file may have yet. Return False if this file system has no links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise TakenError(path) from None
    except OSError as error:
        if error.errno in _WITHOUT_LINKS:
            return False
        raise
    temporary.unlink()
    return True


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_pickle(file: BinaryIO, contents: DumpContents) -> None:
    """Write one pickle of the dict. It is built from pickles of its parts, so that not all are in memory at once."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, 2)

    def part(value: object) -> bytes:
        buffer.seek(0)
        buffer.truncate()
        pickler.dump(value)
        return buffer.getvalue()[2:-1]  # without "protocol 2" and "stop"

    file.write(pickle.PROTO + b"\x02" + pickle.EMPTY_DICT)
    file.writelines(part(key) + part(value) + pickle.SETITEM for key, value in contents.header().items())
    file.write(part("entries") + pickle.EMPTY_LIST + pickle.MARK)
    known = pickler.memo.copy()
    for index, entry in enumerate(contents.entries()):
        if index % _BATCH == 0:
            pickler.memo = known
        file.write(part(entry))
    file.write(pickle.APPENDS + pickle.SETITEM + pickle.STOP)


def _write_json(file: BinaryIO, contents: DumpContents) -> None:
    """Write JSON by PyTorch's conventions: 0 for a time that is not known, numbers of ``pg_status`` as text."""
    header = contents.header()
    header["pg_status"] = {
        key: {name: str(number) for name, number in status.items()} for key, status in header["pg_status"].items()
    }
    file.write(b"{")
    file.writelines(_json(key) + b": " + _json(value) + b", " for key, value in header.items())
    file.write(b'"entries": [')
    for index, entry in enumerate(contents.entries()):
        for name in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[name] = entry[name] or 0
        file.write((b",\n" if index else b"\n") + _json(entry))
    file.write(b"]}\n")


def _json(value: object) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
