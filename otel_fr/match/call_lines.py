"""Where in the program a rank made its collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from otel_fr.stacks import ALPHABET

Lines = Mapping[int, tuple[str, ...]]
"""By number of the collective, the frames that called it, ``"file:line function"``, the innermost first."""


class CallLines(NamedTuple):
    """The latest collectives of one group, as a rank reports them.

    Attributes:
        group: `Group.id`. first: number of the first.
        calls: a character for each, which stands for a place by its position in `ALPHABET`; another one: not known.
        places: of frames, the innermost first.
    """

    group: str
    first: int
    calls: str
    places: tuple[tuple[str, ...], ...]

    def by_number(self) -> Lines:
        """The collectives whose places are known."""
        place_of = dict(zip(ALPHABET, self.places, strict=False))
        return {number: place_of[one] for number, one in enumerate(self.calls, self.first) if one in place_of}
