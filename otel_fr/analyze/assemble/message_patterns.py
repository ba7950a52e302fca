"""Ranks that sent or received as many messages in their last step as in each step before, or fewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from otel_fr.analyze.assemble.messages import Messages, Pair
from otel_fr.dumps.columns import COLLECTIVE, COMPLETED, Indices, Integers
from otel_fr.dumps.model import Dump
from otel_fr.match.model import MessagePattern
from otel_fr.operations import other_half

MIN_STEPS = 3
"""Steps with the same number of messages, the last one included, that show a pattern: two may be equal by chance."""


def message_patterns(
    dumps: Sequence[Dump], found: Sequence[Messages], ids: Mapping[int, Mapping[str, str]]
) -> tuple[frozenset[MessagePattern], frozenset[MessagePattern]]:
    """The patterns that were kept, and those that were broken.

    They are patterns of the ranks that are to issue the other half of a send or receive in flight. A step lies between
    two collectives of a group: of one in which the rank has a collective in flight, or, for those that were broken, of
    any, or between two messages like the first one that it has in flight. Steps count from the oldest known message.
    """
    halves = {own.rank: own.by_pair() for own in found}
    by_rank = {own.rank: (dump, own) for dump, own in zip(dumps, found, strict=True)}
    steps: dict[int, list[_Steps]] = {}
    kept, broken = set[MessagePattern](), set[MessagePattern]()
    for own in found:
        for (pair, operation), positions in halves[own.rank].items():
            other = pair.destination if operation == "send" else pair.source
            if other not in by_rank or not (own.entries.state[positions] != COMPLETED).any():
                continue
            dump, theirs = by_rank[other]
            if other not in steps:
                steps[other] = [*_steps(dump), *_message_steps(theirs, halves[other])]
            wanted = other_half(operation)
            records = theirs.entries.record[halves[other].get((pair, wanted), np.empty(0, np.int32))]
            for step in steps[other]:
                counts = np.diff(np.searchsorted(records, step.marks))
                if step.is_open and _is_steady(counts):
                    kept.add(_pattern(other, pair, step.group, ids[other]))
                elif _is_steady(counts[:-1]) and counts[-1] < counts[-2]:
                    broken.add(_pattern(other, pair, None, ids[other]))
    return frozenset(kept), frozenset(broken)


class _Steps(NamedTuple):
    """Record ids of the calls that end the steps of a rank, up to the first in flight.

    Attributes:
        group: key of the group of these collectives; of messages "". is_open: the last one is in flight.
    """

    group: str
    marks: Integers
    is_open: bool


def _steps(dump: Dump) -> Iterator[_Steps]:
    """Of each group in which the rank has made collectives."""
    entries = dump.entries
    collective = entries.stream == COLLECTIVE
    for code in np.unique(entries.group[collective]).tolist():
        which = np.flatnonzero(collective & (entries.group == code))
        _, firsts = np.unique(entries.sequence_id[which], return_index=True)
        marks = which[firsts]
        begun = np.flatnonzero(entries.state[marks] != COMPLETED)
        last = begun[0] + 1 if len(begun) else len(marks)
        yield _Steps(entries.groups[code], entries.record[marks[:last]], len(begun) > 0)


def _message_steps(own: Messages, halves: Mapping[tuple[Pair, str], Indices]) -> Iterator[_Steps]:
    """Of the messages like the first one in flight."""
    begun = np.flatnonzero(own.entries.state != COMPLETED)
    for positions in halves.values() if len(begun) else ():
        marks = positions[positions <= begun[0]]
        if len(marks) and marks[-1] == begun[0]:
            yield _Steps("", own.entries.record[marks], is_open=False)


def _is_steady(counts: Integers) -> bool:
    counts = counts[np.flatnonzero(counts)[0] :] if counts.any() else counts[:0]
    return len(counts) >= MIN_STEPS and bool((counts == counts[0]).all())


def _pattern(rank: int, pair: Pair, group: str | None, ids: Mapping[str, str]) -> MessagePattern:
    step = "" if group is None else ids[group]
    return MessagePattern(rank, ids[pair.group], pair.source, pair.destination, pair.tag, step)
