"""A file that is written as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it at the end, and is removed where writing fails.

    A symbolic link stays, and the file it leads to is replaced.

    Raises:
        OSError: ``path`` cannot be replaced; or it is there and is no regular file. A device or a pipe is never
            replaced: for root, that would leave the machine with a file in the place of /dev/null.
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
