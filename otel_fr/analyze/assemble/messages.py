"""The sends and receives of one file, as columns. They can be rewritten by group and signature."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from otel_fr.analyze.assemble.message_alignment import PairEnd
from otel_fr.dumps.columns import COMPLETED, NONE, P2P, Entries, Indices, Integers, Mask, Table
from otel_fr.dumps.model import Dump
from otel_fr.match.model import Signature
from otel_fr.operations import way


class Pair(NamedTuple):
    """The messages in one direction between two ranks with one tag. Ranks are global. ``group``: as in `Entry`."""

    group: str
    source: int
    destination: int
    tag: int


class Messages:
    """The sends and receives of one file.

    Attributes:
        entries: the calls, oldest first, with global peers. A call whose counterpart cannot be determined is marked as
            a receive from any source, or as a send to a rank that receives from any source. It is not judged.
        number: the number of each entry within its `Pair`. `NONE`: not known.
        decided: True for entries that the match engine need not see.
    """

    def __init__(self, dump: Dump) -> None:
        self.rank, self.partial, self.source = dump.rank, dump.partial, dump.source
        self.entries: Entries
        self.number: Integers
        self.decided: Mask
        self._set(dump.entries.take(dump.entries.stream == P2P))

    def _set(self, entries: Entries) -> None:
        self.entries = entries
        self.number = np.full(len(entries), NONE) if entries.pair_index is None else entries.pair_index.copy()
        self.decided = entries.state == COMPLETED

    def kinds(self) -> Iterator[tuple[str, Signature, Indices]]:
        """Yield each combination of group key and signature with the positions of its calls, oldest first."""
        entries = self.entries
        both = entries.group.astype(np.int64) * max(1, len(entries.signatures)) + entries.signature
        order = np.argsort(both, kind="stable").astype(np.int32)
        values, starts = np.unique(both[order], return_index=True)
        for value, which in zip(values.tolist(), np.split(order, starts[1:]), strict=False):
            group, signature = divmod(value, len(entries.signatures))
            yield entries.groups[group], entries.signatures[signature], which

    def rewrite(self, change: Callable[[str, Signature, Indices], Signature | None]) -> None:
        """Replace the signature of each kind of calls by the result of ``change``. If that is None, drop the calls."""
        signatures: Table[Signature] = Table()
        column = np.full(len(self.entries), -1, np.int32)
        for group, signature, which in self.kinds():
            made = change(group, signature, which)
            if made is not None:
                column[which] = signatures[made]
        entries = self.entries.replace(signature=column, signatures=list(signatures))
        self._set(entries.take(column >= 0))

    def by_pair(self) -> dict[tuple[Pair, str], Indices]:
        """(pair, operation) -> positions of the calls, oldest first. Receives from any source are left out."""
        found: dict[tuple[Pair, str], list[Indices]] = {}
        for group, signature, which in self.kinds():
            peer = signature.peer
            if peer is None or signature.any_source:
                continue
            ends = way(signature.operation, self.rank, peer)
            kind = (Pair(group, *ends, signature.tag or 0), signature.operation)
            found.setdefault(kind, []).append(which)
        return {kind: np.sort(np.concatenate(parts)) for kind, parts in found.items()}

    def pair_end(self, positions: Indices) -> PairEnd:
        return PairEnd(self.partial, self.entries.record[positions], self.entries.state[positions])

    def close(self, lost: Mask, vague: Mask) -> None:
        """Drop the ``lost`` calls, and mark the ``vague`` ones as calls whose counterpart cannot be determined."""
        signatures: Table[Signature] = Table()
        for known in self.entries.signatures:
            signatures[known]
        column = self.entries.signature.copy()
        for code in np.unique(column[vague]).tolist():
            unsure = self.entries.signatures[code]._replace(any_source=True)
            column[vague & (self.entries.signature == code)] = signatures[unsure]
        changed = self.entries.replace(signature=column, signatures=list(signatures), pair_index=self.number)
        self.entries, self.number, self.decided = changed.take(~lost), self.number[~lost], self.decided[~lost]
