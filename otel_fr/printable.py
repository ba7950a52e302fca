"""Text from jobs, made safe for terminals: names and messages may contain control sequences."""

from __future__ import annotations

from typing import Any

_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """The text with every character that a terminal would act on (escape, carriage return, ...) replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else "\ufffd" for char in text)


def printable_data(value: Any) -> Any:
    """The same for all strings in JSON-like data, including keys; returns new data."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_data(key): printable_data(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_data(item) for item in value]
    return value
