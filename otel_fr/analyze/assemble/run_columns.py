"""Decides collectives on the columns of all ranks at once, so that only the remaining calls become objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from otel_fr.dumps.columns import COLLECTIVE, COMPLETED, NONE, UNKNOWN, Indices, Mask
from otel_fr.dumps.model import Dump
from otel_fr.match.facts.legal import is_even, own_difference
from otel_fr.match.model import Group, Signature
from otel_fr.operations import NEEDS_EVERY_RANK


class RunColumns:
    """The columns of all ranks of one run. Groups and signatures have the same numbers in all files.

    Attributes:
        groups: ids of the groups, in the order of their numbers.
        signatures: signature -> its number.
        group, signature: for each file, the number of each entry's group and signature. -1: not a group of the run.
    """

    def __init__(
        self, dumps: Sequence[Dump], ids: Mapping[int, Mapping[str, str]], groups: Mapping[str, Group]
    ) -> None:
        """``ids``: rank -> key of a group in its file -> id of the group."""
        self._dumps = dumps
        self.groups = list(groups)
        self._members = np.array([len(groups[id_].ranks) for id_ in self.groups] or [0], np.int64)
        number = {id_: index for index, id_ in enumerate(self.groups)}
        self.signatures: dict[Signature, int] = {}
        self._joined = np.array(_joined_by_all(dumps, ids, groups) or [0], np.int64)
        self.group: list[Indices] = []
        self.signature: list[Indices] = []
        for dump in dumps:
            entries, of_rank = dump.entries, ids[dump.rank]
            known = [number.get(of_rank.get(key, ""), -1) for key in entries.groups]
            alike = [self.signatures.setdefault(s, len(self.signatures)) for s in entries.signatures]
            self.group.append(_through(known, entries.group))
            self.signature.append(_through(alike, entries.signature))

    def decided(self) -> list[Mask]:
        """For each file, the mask of entries that the match engine need not see. Nearly all entries are of this kind.

        They belong to collectives that every member completed with the same signature. If a backend does not show when
        calls end, a collective that every member has joined counts as completed, as in the collector: its
        ranks may already wait in a later call.
        """
        entries = [dump.entries for dump in self._dumps]
        which = [(e.stream == COLLECTIVE) & (g >= 0) for e, g in zip(entries, self.group, strict=True)]
        out = [np.zeros(len(mask), np.bool_) for mask in which]
        group = np.concatenate([g[mask] for g, mask in zip(self.group, which, strict=True)] or [np.empty(0, np.int32)])
        if not len(group):
            return out
        number = np.concatenate([e.sequence_id[mask] for e, mask in zip(entries, which, strict=True)])
        signature = np.concatenate([s[mask] for s, mask in zip(self.signature, which, strict=True)])
        state = np.concatenate([e.state[mask] for e, mask in zip(entries, which, strict=True)])
        done = np.isin(state, (COMPLETED, UNKNOWN))
        owner = np.repeat(np.arange(len(which), dtype=np.int32), [np.count_nonzero(mask) for mask in which])
        sizes, size_of = np.unique(self._members, return_inverse=True)
        # Equal signatures may still not match, or all be wrong.
        pairs, pair_of = np.unique(size_of[group] * len(self.signatures) + signature, return_inverse=True)
        distinct = list(self.signatures)
        sound = []
        for pair in pairs.tolist():
            size, what = int(sizes[pair // len(distinct)]), distinct[pair % len(distinct)]
            sound.append(is_even(what, size) and own_difference(size, what) is None)
        done &= np.array(sound, np.bool_)[pair_of]

        order = np.lexsort((number, group))  # keeps the order of the ranks
        first = np.ones(len(order), np.bool_)
        ahead, behind = order[1:], order[:-1]
        first[1:] = (group[ahead] != group[behind]) | (number[ahead] != number[behind])
        # True if the entry has another signature than the previous one of its collective, or the same rank.
        differs = ~done[order]
        differs[1:] |= ~first[1:] & ((signature[ahead] != signature[behind]) | (owner[ahead] == owner[behind]))
        starts = np.flatnonzero(first)
        counts = np.diff(starts, append=len(order))
        of_group = group[order[starts]]
        # If every member has joined a collective, some members' files may still have lost their call.
        unseen = np.logical_and.reduceat(state[order] == UNKNOWN, starts)
        complete = (counts == self._members[of_group]) | (unseen & (number[order[starts]] <= self._joined[of_group]))
        good = ~np.logical_or.reduceat(differs, starts) & complete
        flags = np.zeros(len(order), np.bool_)
        flags[order] = np.repeat(good, counts)
        begin = 0
        for mask, found in zip(which, out, strict=True):
            count = np.count_nonzero(mask)
            found[mask] = flags[begin : begin + count]
            begin += count
        return out

    def last_completed(self) -> dict[str, tuple[int, int]]:
        """Group id -> the last completed collective that needs every rank, and a rank that completed it."""
        needed = np.array([s.operation in NEEDS_EVERY_RANK for s in self.signatures] or [False], np.bool_)
        best = np.zeros(len(self._members), np.int64)
        by = np.full(len(best), -1, np.int64)
        for dump, group, signature in zip(self._dumps, self.group, self.signature, strict=True):
            entries = dump.entries
            which = (entries.stream == COLLECTIVE) & (entries.state == COMPLETED) & (group >= 0) & needed[signature]
            before = best.copy()
            np.maximum.at(best, group[which], entries.sequence_id[which])
            by[best > before] = dump.rank
        return {id_: (int(best[index]), int(by[index])) for index, id_ in enumerate(self.groups) if by[index] >= 0}


def showing_begins(dumps: Iterable[Dump]) -> frozenset[str]:
    """The backends for which these files show, for at least one call, when the device began it."""
    found: set[str] = set()
    for dump in dumps:
        entries = dump.entries
        if entries.started is not None:
            begun = np.unique(entries.label[entries.started != NONE])
            found.update(entries.labels[index].backend for index in begun.tolist())
    return frozenset(found - {""})


def _joined_by_all(
    dumps: Sequence[Dump], ids: Mapping[int, Mapping[str, str]], groups: Mapping[str, Group]
) -> list[int]:
    """For each group, the last collective that every member has enqueued. 0: none, or not known for every member."""
    reached: dict[str, dict[int, int]] = {}
    for dump in dumps:
        for key, info in dump.groups.items():
            id_ = ids[dump.rank].get(key)
            if id_ is not None:
                reached.setdefault(id_, {})[dump.rank] = info.enqueued or 0
    return [
        min((known.get(rank, 0) for rank in group.ranks), default=0) if (known := reached.get(id_)) else 0
        for id_, group in groups.items()
    ]


def _through(table: Sequence[int], column: npt.NDArray[np.int32]) -> Indices:
    return np.array(table or [0], np.int32)[column]
