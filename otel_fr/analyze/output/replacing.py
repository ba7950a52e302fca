"""Writes a file completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Provide a temporary path beside ``path``. At the end it replaces ``path``; if writing fails, it is removed.

    A symbolic link is kept, and the file to which it leads is replaced.

    Raises:
        OSError: ``path`` cannot be replaced, or it exists and is not a regular file. A device or a pipe is never
            replaced: as root, this could put a file in the place of /dev/null.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError("not a regular file")
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
