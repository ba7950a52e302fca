"""Which ranks are at the same place: their stacks, merged by the frames of the thread that comes first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from otel_fr.match.model import StackGroup

MAX_GROUPS: Final = 16
"""The groups of the most ranks are kept."""
MAX_FRAMES: Final = 48
"""The innermost frames are kept."""
_MAX_FRAME: Final = 300
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+),? in (?P<name>[^\n]+)', re.MULTILINE)
_HEADS: Final = ("Thread ", "Current thread ", "Stack ")
_NEWEST_FIRST: Final = "most recent call first"


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
        frames = _frames(text)
        if frames:
            by_frames.setdefault(frames, []).extend(ranks)
    groups = [StackGroup(tuple(sorted(ranks)), frames) for frames, ranks in by_frames.items()]
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), group.ranks))[:MAX_GROUPS])


def _main_thread(text: str) -> str:
    """The part of the first thread, without its name and id; it says which end of its frames is the innermost."""
    part = first_thread(text)
    if part is text and not part.startswith(_HEADS):
        return text
    head, _, frames = part.partition("\n")
    return f"{_NEWEST_FIRST if _NEWEST_FIRST in head else ''}\n{frames.strip()}"


def is_newest_first(thread: str) -> bool:
    """Its heading says that the first frame is the innermost."""
    return _NEWEST_FIRST in thread.partition("\n")[0]


def first_thread(text: str) -> str:
    """The part of the first thread, from its heading; without a heading all of the text."""
    starts = [at for head in _HEADS for at in _lines_with(text, head)]
    if not starts:
        return text
    first = min(starts)
    later = [at for at in starts if at > first]
    return text[first : min(later)] if later else text[first:]


def _lines_with(text: str, head: str) -> list[int]:
    """Where the first two lines begin that have this beginning."""
    found = [0] if text.startswith(head) else []
    at = text.find("\n" + head)
    while at >= 0 and len(found) < 2:
        found.append(at + 1)
        at = text.find("\n" + head, at + 1)
    return found


def _frames(text: str) -> tuple[str, ...]:
    found = [f"{frame['file']}:{frame['line']} {frame['name'].strip()}"[:_MAX_FRAME] for frame in _FRAME.finditer(text)]
    if _NEWEST_FIRST in text.partition("\n")[0]:
        found.reverse()
    return tuple(found[-MAX_FRAMES:])


def groups_of(ranks: Iterable[int], stacks: Mapping[int, str]) -> tuple[StackGroup, ...]:
    """`group_stacks` of some ranks; () if fewer than two of them have a stack."""
    known = [(rank, stacks[rank]) for rank in sorted(set(ranks)) if stacks.get(rank)]
    return group_stacks(known) if len(known) > 1 else ()
