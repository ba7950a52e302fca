"""Every collective in the files, with each rank's calls.

A `Collective` contains the recorded calls (`Entry`) and is part of the interface of `otel_fr.analyze`. The match
engine's `otel_fr.match.facts.instances.Instance` contains only the calls that must be judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from otel_fr.analyze.assemble.clocks import LATEST
from otel_fr.analyze.assemble.runs import Run
from otel_fr.dumps.columns import P2P
from otel_fr.dumps.entry import Entry
from otel_fr.identity import Stream
from otel_fr.match import CallState, Group
from otel_fr.match.facts.instances import InstanceKey, members_of
from otel_fr.operations import way


@dataclass(slots=True, kw_only=True)
class Collective:
    """One collective, or one send with its receive.

    Attributes:
        name: the `Finding.key` of a fault in this collective.
        stream: ``"collective"``, ``"p2p"``, ``"monitored_barrier"`` or ``"group"``.
        sequence_id: its number within (group, stream). For p2p, the lowest rank's own number.
        members: the global ranks that must join. Empty: not known, or none must, as in destroying the group.
        calls: rank -> its calls as recorded (`Entry`). Only a coalesced batch has more than one.
    """

    name: str
    group: Group
    stream: Stream
    sequence_id: int
    members: tuple[int, ...]
    calls: dict[int, list[Entry]] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        """The operation that most ranks called (`torch.distributed`'s name)."""
        counts = Counter(calls[-1].signature.operation for _, calls in sorted(self.calls.items()))
        return counts.most_common(1)[0][0]

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Members whose call is not in the files: not enqueued, overwritten, or the rank has no file."""
        return tuple(rank for rank in self.members if rank not in self.calls)

    @property
    def completed(self) -> bool:
        """Whether every member's call is recorded as completed."""
        return not self.missing_ranks and all(calls[-1].state is CallState.COMPLETED for calls in self.calls.values())


def collectives_of(run: Run) -> list[Collective]:
    """All collectives of a run, in the order in which the lowest rank of each enqueued them."""
    found: dict[InstanceKey, Collective] = {}
    for rank, entry, group in group_entries(run):
        key = key_of(rank, entry, group)
        known = found.get(key)
        if known is None:
            members: tuple[int, ...] = key[2:4] if len(key) == 6 else (rank,)
            if len(key) == 3 and entry.stream != "p2p":
                members = () if entry.signature.destroys else members_of(group, entry.signature)
            name = "/".join(map(str, key))
            known = found[key] = Collective(
                name=name, group=group, stream=entry.stream, sequence_id=entry.sequence_id, members=members
            )
        known.calls.setdefault(rank, []).append(entry)
    return list(found.values())


def entries_by_rank(run: Run) -> Iterator[tuple[int, Sequence[Entry], dict[str, Group]]]:
    """For each file: the rank, its calls (oldest first), and the groups by `Entry.group`. Peers are global ranks."""
    for dump, messages in zip(run.dumps, run.messages, strict=True):
        entries: Sequence[Entry] = dump.entries
        if (dump.entries.stream == P2P).any():
            others = dump.entries.at(np.flatnonzero(dump.entries.stream != P2P))
            entries = sorted([*others, *messages.entries], key=lambda entry: entry.record)
        yield dump.rank, entries, {key: run.evidence.groups[id_] for key, id_ in run.ids[dump.rank].items()}


def group_entries(run: Run) -> Iterator[tuple[int, Entry, Group]]:
    """All calls with their rank and group, rank by rank, oldest first. Calls of unknown groups are left out."""
    for rank, entries, groups in entries_by_rank(run):
        for entry in entries:
            group = groups.get(entry.group)
            if group is not None:
                yield rank, entry, group


def key_of(rank: int, entry: Entry, group: Group) -> InstanceKey:
    """The key of the collective that a call belongs to."""
    if entry.stream != "p2p":
        return group.id, entry.stream, entry.sequence_id
    signature = entry.signature
    if signature.peer is None or signature.any_source:
        return group.id, f"p2p:{rank}", entry.record
    return (group.id, "p2p", *way(signature.operation, rank, signature.peer), signature.tag or 0, entry.pair_index or 0)


def moment(nanoseconds: int | None) -> int | None:
    """Return a time of an entry if it is plausible, else None: files may contain any number."""
    return nanoseconds if nanoseconds is not None and 0 < nanoseconds < LATEST else None
