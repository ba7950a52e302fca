"""Ranks that sent or received as many messages in their last step as in each step before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from otel_fr.analyze.assemble.messages import Messages, Pair
from otel_fr.dumps.columns import COLLECTIVE, COMPLETED, Integers
from otel_fr.dumps.model import Dump
from otel_fr.match.model import MessagePattern
from otel_fr.operations import other_half

MIN_STEPS = 3
"""Steps with the same number of messages, the last one included, that show a pattern: two may be equal by chance."""


def kept_patterns(
    dumps: Sequence[Dump], found: Sequence[Messages], ids: Mapping[int, Mapping[str, str]]
) -> frozenset[MessagePattern]:
    """The patterns that were kept, of the ranks that are to issue the other half of a send or receive in flight.

    A step lies between two collectives of a group in which the rank has a collective in flight. Steps count from the
    oldest known message.
    """
    halves = {own.rank: own.by_pair() for own in found}
    by_rank = {own.rank: (dump, own) for dump, own in zip(dumps, found, strict=True)}
    steps: dict[int, dict[str, Integers]] = {}
    kept: set[MessagePattern] = set()
    for own in found:
        for (pair, operation), positions in halves[own.rank].items():
            other = pair.destination if operation == "send" else pair.source
            if other not in by_rank or not (own.entries.state[positions] != COMPLETED).any():
                continue
            dump, theirs = by_rank[other]
            if other not in steps:
                steps[other] = _steps(dump)
            wanted = other_half(operation)
            records = theirs.entries.record[halves[other].get((pair, wanted), np.empty(0, np.int32))]
            for group, marks in steps[other].items():
                if _is_steady(np.diff(np.searchsorted(records, marks))):
                    kept.add(_pattern(other, pair, group, ids[other]))
    return frozenset(kept)


def _steps(dump: Dump) -> dict[str, Integers]:
    """By key of each group with a collective in flight: record ids of its collectives up to the first in flight."""
    entries = dump.entries
    collective = entries.stream == COLLECTIVE
    found: dict[str, Integers] = {}
    for code in np.unique(entries.group[collective & (entries.state != COMPLETED)]).tolist():
        which = np.flatnonzero(collective & (entries.group == code))
        _, firsts = np.unique(entries.sequence_id[which], return_index=True)
        marks = which[firsts]
        begun = np.flatnonzero(entries.state[marks] != COMPLETED)
        found[entries.groups[code]] = entries.record[marks[: begun[0] + 1]] if len(begun) else marks[:0]
    return found


def _is_steady(counts: Integers) -> bool:
    counts = counts[np.flatnonzero(counts)[0] :] if counts.any() else counts[:0]
    return len(counts) >= MIN_STEPS and bool((counts == counts[0]).all())


def _pattern(rank: int, pair: Pair, group: str, ids: Mapping[str, str]) -> MessagePattern:
    return MessagePattern(rank, ids[pair.group], pair.source, pair.destination, pair.tag, ids[group])
