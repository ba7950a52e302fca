"""What all sections of a rank report have in common, and how sections in flight-recorder files are read."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from otel_fr.rank_report.bounds import Names

_DAMAGED = (msgspec.ValidationError, UnicodeError)
"""The second is raised for a key with a lone surrogate."""
_S = TypeVar("_S", bound="Section")


class Section(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An object of the JSON. Fields with their default value are not written."""


def section_of(kind: type[_S], value: object) -> _S | None:
    """Return a section from a flight-recorder file. None: the value is no section, or is damaged."""
    try:
        return msgspec.convert(value, kind)
    except _DAMAGED:
        return None


def names_of(value: object) -> tuple[str, ...]:
    """Return a list of names from a flight-recorder file. Empty: the value is no such list."""
    try:
        return msgspec.convert(value, Names)
    except _DAMAGED:
        return ()


def sections_of(kind: type[_S], value: object, most: int) -> tuple[_S, ...]:
    """Return the undamaged sections of a list in a flight-recorder file."""
    items = value[:most] if isinstance(value, (list, tuple)) else ()
    return tuple([found for item in items if (found := section_of(kind, item)) is not None])
