"""Ranks that have left a loop of the program in which others wait, as they do whose data ends early."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache

from otel_fr.match.model import Rank
from otel_fr.presentation import ranks_text, verb
from otel_fr.stacks import Loop

MAX_CULPRITS = 8
"""Ranks of one finding whose loops are looked at."""


def left_texts(
    culprits: Sequence[Rank], waiting: Mapping[int, Sequence[str]], ended: Collection[int] = ()
) -> list[str]:
    """``"rank 3 has left the loop at train.py:38-44 main, in which ranks 0-2 wait"``.

    Args:
        waiting: rank -> where it waits, or did: places of its call and of the frames of its stack.
        ended: those of them that wait no more.
    """
    found: dict[tuple[Loop, tuple[int, ...]], list[int]] = {}
    for info in culprits[:MAX_CULPRITS]:
        for loop in info.left_loops:
            has = cache(loop.has)
            inside = tuple([rank for rank, places in waiting.items() if rank != info.rank and any(map(has, places))])
            if inside:
                found.setdefault((loop, inside), []).append(info.rank)
                break
    return [_text(ranks, *which, is_over=set(which[1]) <= set(ended)) for which, ranks in found.items()]


def _text(ranks: Sequence[int], loop: Loop, inside: Sequence[int], *, is_over: bool) -> str:
    wait = "waited" if is_over else verb(inside, "waits", "wait")
    text = f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} left the loop at {loop.text}"
    again = " (maybe after entering it again)" if loop.is_nested else ""
    return f"{text}, in which {ranks_text(inside)} {wait}{again}"
