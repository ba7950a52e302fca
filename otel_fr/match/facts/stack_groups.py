"""Which ranks are at the same place: their stacks, merged by the frames of the thread that comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from otel_fr.match.finding import StackGroup
from otel_fr.stacks import NEWEST_FIRST, ORDER, first_thread, places_of

MAX_GROUPS: Final = 16
"""The groups of the most ranks are kept."""
MAX_FRAMES: Final = 48
"""The innermost frames are kept."""
_MAX_FRAME: Final = 300


def group_stacks(stacks: Iterable[tuple[int, str]]) -> tuple[StackGroup, ...]:
    """The ranks of each place, most ranks first.

    Args:
        stacks: ranks with the text of their threads' stacks, the rank's thread first, as `faulthandler` or `traceback`
            write it. Other threads, and the ids of threads, make no difference.
    """
    by_text: dict[str, list[int]] = {}
    for rank, text in stacks:
        by_text.setdefault(_main_thread(text), []).append(rank)
    by_frames: dict[tuple[str, ...], list[int]] = {}
    for text, ranks in by_text.items():
        frames = tuple(place[:_MAX_FRAME] for place in places_of(text)[-MAX_FRAMES:])
        if frames:
            by_frames.setdefault(frames, []).extend(ranks)
    groups = [StackGroup(tuple(sorted(ranks)), frames) for frames, ranks in by_frames.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))[:MAX_GROUPS])


def _main_thread(text: str) -> str:
    """The part of the first thread, without its name and id; it says which end of its frames is the innermost."""
    thread = first_thread(text)
    head, _, frames = thread.partition("\n")
    return f"{NEWEST_FIRST if NEWEST_FIRST in head else ''}\n{frames.strip()}" if ORDER in head else thread


def groups_of(ranks: Iterable[int], stacks: Mapping[int, str]) -> tuple[StackGroup, ...]:
    """`group_stacks` of some ranks; () if fewer than two of them have a stack."""
    known = [(rank, stacks[rank]) for rank in sorted(set(ranks)) if stacks.get(rank)]
    return group_stacks(known) if len(known) > 1 else ()
