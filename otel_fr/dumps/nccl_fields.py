"""Functions that readers of NCCL's files share: a file's first bytes, and fields of JSON with checked types."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MAX_TEXT: Final = 256
"""Characters of a name or id that are kept."""
_LARGEST: Final = 1 << 62
_HEAD_BYTES: Final = 4096


def head_of(path: Path) -> bytes:
    """The first bytes of a regular file. Empty if it is not a regular file or cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def text(value: object) -> str:
    """A text, cut to `MAX_TEXT`.

    Raises:
        TypeError: the value is not a text.
    """
    if not isinstance(value, str):
        raise TypeError
    return value[:MAX_TEXT]


def integer(value: object) -> int:
    """An integer from 0 to 2^62, exclusive.

    Raises:
        ValueError: the value is not such an integer.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise ValueError
    return value


def number(value: object) -> float:
    """A number from 0 to 2^62, exclusive.

    Raises:
        ValueError: the value is not such a number.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < _LARGEST:
        raise ValueError
    return float(value)
