"""What all sections of a rank report have in common, and the reading of sections in flight-recorder files."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from otel_fr.rank_report.bounds import Names

_DAMAGED = (msgspec.ValidationError, UnicodeError)
"""The latter for a key with a lone surrogate."""
_S = TypeVar("_S", bound="Section")


class Section(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An object of the JSON; what has its default is not written."""


def section_of(kind: type[_S], value: object) -> _S | None:
    """A section in a flight-recorder file; None: it is none, or damaged."""
    try:
        return msgspec.convert(value, kind)
    except _DAMAGED:
        return None


def names_of(value: object) -> tuple[str, ...]:
    """A list of names in a flight-recorder file; what is none is empty."""
    try:
        return msgspec.convert(value, Names)
    except _DAMAGED:
        return ()


def sections_of(kind: type[_S], value: object, most: int) -> tuple[_S, ...]:
    """A list of sections in a flight-recorder file, without those that are damaged."""
    items = value[:most] if isinstance(value, (list, tuple)) else ()
    return tuple([found for item in items if (found := section_of(kind, item)) is not None])
