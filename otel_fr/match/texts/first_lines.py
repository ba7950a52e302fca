"""The first call that a rank made elsewhere in the program than its peers: noticed only later, if calls look alike.

Ranks may make a call in lines of their own, so a difference alone says nothing. It does where the rank's lines were its
peers' before it, and are theirs again from there on, a few calls apart: it left out calls, or made some too many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from otel_fr.match.call_lines import Lines
from otel_fr.match.model import Group
from otel_fr.match.texts.calls import group_of
from otel_fr.presentation import ranks_by_text, ranks_text, summary_text

MAX_APART: Final = 8
"""Calls that a rank has left out, or made too many."""
MAX_ASTRAY: Final = 8
MAX_PEERS: Final = 64
"""Ranks that are compared: more have not gone astray one by one, and all run alike."""
MAX_DIFFERENT: Final = 16
"""Of ranks that report their calls, so many different ones are compared, which takes a few hundredths of a second."""


def first_line_texts(lines: Mapping[int, Lines], group: Group, astray: Collection[int]) -> Iterator[str]:
    """``"the first call that rank 3 made elsewhere: number 25 of group default_pg (0), at ...; the others at ..."``.

    Args:
        lines: of the ranks of a group. astray: those that are compared with the others.
    """
    # Of peers that are alike, one tells all.
    common = _common({id(own): own for rank, own in lines.items() if rank not in astray}.values())
    found: list[tuple[int, str]] = []
    for rank in sorted(lines.keys() & set(astray)):
        number = _first(lines[rank], common)
        if number is not None:
            here, there = _places(lines[rank][number], common[number])
            found.append((rank, f"number {number} of {group_of(group)}, at {here}; the others at {there}"))
    for text, ranks in ranks_by_text(found).items():
        yield summary_text(f"the first call that {ranks_text(ranks)} made elsewhere: {text}")


def _common(of_peers: Iterable[Lines]) -> Lines:
    """Where all peers that made a call made it in the same place."""
    found: dict[int, tuple[str, ...]] = {}
    differing: set[int] = set()
    for lines in of_peers:
        for number, place in lines.items():
            if found.setdefault(number, place) != place:
                differing.add(number)
    return {number: place for number, place in found.items() if number not in differing}


def _first(own: Lines, common: Lines) -> int | None:
    """The number at which the rank first was elsewhere; None: it never was, or may always have been."""
    both = sorted(own.keys() & common.keys())
    first = next((number for number in both if own[number] != common[number]), None)
    if first is None or first == both[0]:
        return None
    return first if any(_is_apart(own, common, first, calls) for calls in range(1, MAX_APART + 1)) else None


def _is_apart(own: Lines, common: Lines, first: int, calls: int) -> bool:
    """From there on, the rank was where its peers were so many calls later, or earlier, and not where they were."""
    later = [place == common[n + calls] for n, place in own.items() if n >= first and n + calls in common]
    if later and all(later):
        return True
    after = [(place, n) for n, place in own.items() if n - calls >= first and n - calls in common]
    is_as_before = all(place == common.get(n, place) for place, n in after)
    return not is_as_before and all(place == common[n - calls] for place, n in after)


def _places(own: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, str]:
    """The lines, or the first of their callers' that differ."""
    return next((pair for pair in zip(own, other, strict=False) if pair[0] != pair[1]), (own[0], other[0]))
