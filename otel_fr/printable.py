"""Makes text from jobs safe for terminals: names and messages may contain control sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEPT = frozenset("\n\t")
_SPACES = str.maketrans("\n\t", "  ")


def printable(text: str) -> str:
    """The text with every character that a terminal would act on (escape, carriage return, ...) replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else "\ufffd" for char in text)


def one_line(text: str) -> str:
    """Like `printable`, on one line, so that no name looks like a line of ours: line breaks and tabs become spaces."""
    return text if text.isprintable() else printable(text).translate(_SPACES)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and end with ``" ... "`` between them, in at most ``most`` characters (5 or more)."""
    if len(text) <= most:
        return text
    half, odd = divmod(most - 5, 2)
    return f"{text[: half + odd]} ... {text[len(text) - half :]}"


def printable_data(value: Any, form: Callable[[str], str] = printable) -> Any:
    """Apply `printable`, or another ``form``, to all strings in JSON-like data, including keys; return new data."""
    if isinstance(value, str):
        return form(value)
    if isinstance(value, dict):
        return {form(key): printable_data(item, form) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_data(item, form) for item in value]
    return value
