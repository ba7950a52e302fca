"""How much the clocks of ranks differ, from the collectives that they share.

Times of two ranks are never compared directly. A collective ends on all its ranks at nearly the same moment, so the
median difference between the recorded ends is the difference of the clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from otel_fr.dumps.columns import COLLECTIVE, Entries, Integers
from otel_fr.dumps.model import Dump

SHARED = 512
"""Newest collectives of each rank that are compared. They suffice for a median and bound the work."""
LATEST = 1 << 61
"""Limit of times in nanoseconds, exclusive. Files may contain any number; a sum of two times must fit into 64 bits."""


def valid(times: Integers | None, count: int) -> npt.NDArray[np.bool_]:
    """Mask of a column's plausible times."""
    return np.zeros(count, np.bool_) if times is None else (times > 0) & (times < LATEST)


def clock_offsets(dumps: Sequence[Dump], ids: Mapping[int, Mapping[str, str]], groups: Iterable[str]) -> dict[int, int]:
    """Rank -> nanoseconds to add to its times so that shared collectives end at the same time on all ranks.

    The rank with the most collectives is the reference. A rank that shares none with others keeps its clock. If no file
    has ends, because the recorder does not record them, the times of enqueueing are compared.

    Args:
        dumps: one file of each rank.
        ids: as in `runs.Run`.
        groups: ids of the groups.
    """
    has_ends = any(valid(dump.entries.ended, len(dump.entries)).any() for dump in dumps)
    keys, times = _shared(dumps, ids, groups, has_ends)
    offsets = dict.fromkeys((dump.rank for dump in dumps), 0)
    count = max((int(of.max(initial=-1)) for of in keys), default=-1) + 1
    at, known = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    waiting = {index for index, of in enumerate(keys) if len(of)}
    while waiting:
        aligned = {index: known[keys[index]] for index in waiting}
        aligned = {index: which for index, which in aligned.items() if which.any()}
        if not aligned:
            # No remaining rank shares a collective with an aligned one: this rank becomes the next reference.
            index = max(waiting, key=lambda index: (len(keys[index]), -index))
            _place(keys[index], times[index], at, known)
            waiting.discard(index)
            continue
        for index, which in sorted(aligned.items()):
            own = keys[index]
            offset = int(np.median(at[own[which]] - times[index][which]))
            offsets[dumps[index].rank] = offset
            _place(own, times[index] + offset, at, known)
            waiting.discard(index)
    return offsets


def _place(keys: Integers, times: Integers, at: Integers, known: npt.NDArray[np.bool_]) -> None:
    new = ~known[keys]
    at[keys[new]] = times[new]
    known[keys[new]] = True


def _shared(
    dumps: Sequence[Dump], ids: Mapping[int, Mapping[str, str]], groups: Iterable[str], has_ends: bool
) -> tuple[Sequence[Integers], Sequence[Integers]]:
    """For each file: keys of its newest collectives, which are the same on all ranks, and their times."""
    number_of = {id_: number for number, id_ in enumerate(groups)}
    of_calls: list[Integers] = []
    numbers: list[Integers] = []
    times: list[Integers] = []
    for dump in dumps:
        entries = dump.entries
        column = entries.ended if has_ends else entries.created
        own = [number_of.get(ids[dump.rank].get(key, ""), -1) for key in entries.groups]
        group = np.array(own or [0], np.int64)[entries.group]
        chosen = _newest(entries, group >= 0, column)
        of_calls.append(group[chosen])
        numbers.append(entries.sequence_id[chosen])
        times.append(np.zeros(0, np.int64) if column is None else column[chosen])
    counts = [len(of) for of in of_calls]
    group = np.concatenate(of_calls) if of_calls else np.zeros(0, np.int64)
    number = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
    order = np.lexsort((number, group))
    first = np.ones(len(order), np.bool_)
    first[1:] = (group[order[1:]] != group[order[:-1]]) | (number[order[1:]] != number[order[:-1]])
    keys = np.zeros(len(order), np.int64)
    keys[order] = np.cumsum(first) - 1
    return np.split(keys, np.cumsum(counts)[:-1]) if counts else [], times


def _newest(entries: Entries, known: npt.NDArray[np.bool_], column: Integers | None) -> Integers:
    found = np.flatnonzero(known & (entries.stream == COLLECTIVE) & valid(column, len(entries)))
    return found[-SHARED:].astype(np.int64)
