"""Reads the files that options name, each completely and without blocking."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        OSError: the file cannot be read, or is not a regular file. Opening a pipe would wait for a writer.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "must be a regular file, not a pipe or a device", str(path))
        return file.read()


def stamp_of(path: Path) -> tuple[int, int, int]:
    """What differs once the file has another content."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_text(path: Path) -> str:
    """The content of a file, as text.

    Raises:
        ValueError: the content is not UTF-8. The message quotes no part of it, because it may be a secret.
        OSError: as for `read_bytes`.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not text in UTF-8 (byte {error.start})") from None
