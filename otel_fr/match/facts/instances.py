"""Brings together the calls that belong to one collective, or to one send and its receive."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from otel_fr.identity import Stream
from otel_fr.match.facts.calls import pair_of
from otel_fr.match.finding import Finding
from otel_fr.match.model import Call, CallState, Evidence, Group, Rank, Signature
from otel_fr.operations import NEEDS_EVERY_RANK

InstanceKey = tuple[str, str, int] | tuple[str, str, int, int, int, int]
"""(group id, stream, sequence id), or (group id, "p2p", source, destination, tag, pair index)."""


@dataclass(slots=True)
class Instance:
    """One collective (or one send with its receive) and its known calls.

    Attributes:
        members: the ranks that must join; for p2p (source, destination).
        calls: rank -> its calls, in the rank's order; more than one only for a coalesced batch.
        counted: ranks that wait in it by their counts, while the evidence lacks their calls (`Rank.unlisted`).
    """

    key: InstanceKey
    group: Group
    stream: Stream
    members: tuple[int, ...]
    calls: dict[int, list[Call]] = field(default_factory=dict)
    counted: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return "/".join(str(part) for part in self.key)

    @property
    def p2p(self) -> tuple[int, int, int, int] | None:
        return self.key[2:] if len(self.key) == 6 else None

    @property
    def sequence_id(self) -> int:
        """The collective's number; for p2p the number of the lowest rank's call."""
        if len(self.key) == 3:
            return self.key[2]
        return self.calls[min(self.calls)][0].sequence_id

    def call(self, rank: int) -> Call:
        """The rank's call; of a batch the last one, which ends the batch."""
        return self.calls[rank][-1]

    def with_counted(self, waiting: tuple[int, ...]) -> tuple[int, ...]:
        """Return the waiting ranks together with the counted ones, ascending."""
        return tuple(sorted({*waiting, *self.counted})) if self.counted else waiting

    @property
    def operation(self) -> str:
        """The operation that most ranks called."""
        counts: dict[str, int] = defaultdict(int)
        for rank in sorted(self.calls):
            counts[self.call(rank).signature.operation] += 1
        return max(counts, key=lambda name: counts[name]) if counts else ""


def instance_key(call: Call) -> InstanceKey | None:
    """Return the key of the instance to which a call belongs; None: unknown (a receive from any source)."""
    if call.stream != "p2p":
        return call.group, call.stream, call.sequence_id
    pair = pair_of(call)
    if pair is None:
        return None
    return call.group, "p2p", *pair, call.signature.tag or 0, call.pair_index


def key_of_finding(finding: Finding) -> InstanceKey | None:
    """Return the key of the instance that a finding is about; None: it is about none."""
    group, number = finding.group, finding.sequence_id
    if group is None or number is None:
        return None
    return (group.id, finding.stream, number) if finding.p2p is None else (group.id, "p2p", *finding.p2p)


def members_of(group: Group, signature: Signature) -> tuple[int, ...]:
    """Return the ranks that must join the collective of a call.

    The future members of a group wait for each other while they create it. c10d requires every rank to make the call,
    but no rank waits for ranks that do not become members, unless the group `awaits_all`.
    """
    new = signature.new_group
    return new.ranks if new is not None and not new.awaits_all and new.ranks else group.ranks


def _members_of_both(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Join the members of two creations: groups without a common member may be created under one number."""
    return first if first == second else tuple(sorted({*first, *second}))


def line_up(evidence: Evidence) -> dict[InstanceKey, Instance]:
    """Return all instances of the evidence, in the order of their keys. Calls of unknown groups are left out."""
    found: dict[InstanceKey, Instance] = {}
    for call in sorted(evidence.calls, key=lambda c: (c.rank, c.record)):
        key = instance_key(call)
        group = evidence.groups.get(call.group)
        if key is None or group is None:
            continue
        instance = found.get(key)
        if instance is None:
            members = members_of(group, call.signature) if len(key) == 3 else (key[2], key[3])
            instance = found[key] = Instance(key, group, call.stream, members)
        elif call.stream == "group":
            instance.members = _members_of_both(instance.members, members_of(group, call.signature))
        instance.calls.setdefault(call.rank, []).append(call)
    unlisted = {rank: info for rank, info in evidence.ranks.items() if info.unlisted is not None}
    for key, waiting in _counted(found, unlisted).items():
        instance = found[key]
        instance.counted = tuple(sorted(waiting.intersection(instance.members).difference(instance.calls)))
    return {key: found[key] for key in sorted(found, key=lambda k: tuple(str(part).zfill(20) for part in k))}


def _counted(instances: Mapping[InstanceKey, Instance], unlisted: Mapping[int, Rank]) -> dict[InstanceKey, set[int]]:
    """Return the ranks that wait in each collective according to their counts.

    Args:
        unlisted: the ranks that wait in a call that the evidence does not have.
    """
    numbers: dict[str, list[int]] = {}
    for instance in instances.values():
        if instance.stream == "collective":
            numbers.setdefault(instance.group.id, []).append(instance.sequence_id)
    for of_group in numbers.values():
        of_group.sort()
    found: dict[InstanceKey, set[int]] = {}
    for rank, info in unlisted.items():
        for group, own in info.progress.items():
            if own.enqueued != own.completed and (known := numbers.get(group)):
                for number in known[bisect_right(known, own.completed or 0) : bisect_right(known, own.enqueued or 0)]:
                    found.setdefault((group, "collective", number), set()).add(rank)
    return found


class Completions:
    """Which ranks completed an instance, by their progress."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._furthest: dict[str, list[tuple[int, int]]] = {}
        self._uneven: set[str] | None = None
        self._joined_by_all: dict[str, int] = {}

    def of(self, instance: Instance) -> Iterator[tuple[int, int]]:
        """Yield (rank, its last completed number) for the ranks that completed the collective, furthest first."""
        if instance.stream != "collective":
            return
        for rank, completed in self._furthest_in(instance.group.id):
            if completed < instance.sequence_id:
                return
            # A rank's calls need not complete in order.
            if rank not in instance.calls or instance.call(rank).state is CallState.COMPLETED:
                yield rank, completed

    def prove_joined(self, instance: Instance) -> bool:
        """True if a rank completed it and its operation needs every rank: then every member has enqueued it."""
        return instance.operation in NEEDS_EVERY_RANK and next(self.of(instance), None) is not None

    def have_left_behind(self, rank: int, group: str) -> bool:
        """True if the rank's evidence is outdated: a member completed collectives that it does not show enqueued.

        This is proven if one of the completed collectives needs every rank, or if all known ones of the group do.
        """
        own = self._evidence.ranks[rank].progress.get(group)
        furthest = self._furthest_in(group)
        if own is None or own.enqueued is None or not furthest or furthest[0][1] <= own.enqueued:
            return False
        if self._uneven is None:
            self._uneven = set()
            for call in self._evidence.calls:
                if call.stream != "collective":
                    continue
                if call.signature.operation not in NEEDS_EVERY_RANK:
                    self._uneven.add(call.group)
                elif call.state is CallState.COMPLETED:
                    self._joined_by_all[call.group] = max(call.sequence_id, self._joined_by_all.get(call.group, 0))
        return group not in self._uneven or self._joined_by_all.get(group, 0) > own.enqueued

    def _furthest_in(self, group: str) -> list[tuple[int, int]]:
        """Return (rank, last completed number) for the ranks of a group, highest number first."""
        found = self._furthest.get(group)
        if found is None:
            entries = self._completed.get(group, ())
            found = self._furthest[group] = sorted(entries, key=lambda e: (-e[1], e[0]))
        return found

    @cached_property
    def _completed(self) -> dict[str, list[tuple[int, int]]]:
        """Group id -> (rank, last completed number), unsorted. `_furthest_in` sorts the groups that are asked for."""
        found: dict[str, list[tuple[int, int]]] = {}
        for rank, info in self._evidence.ranks.items():
            for group, progress in info.progress.items():
                if progress.completed:
                    found.setdefault(group, []).append((rank, progress.completed))
        return found


def has_joined(instance: Instance, rank: int, info: Rank | None) -> bool | None:
    """Return whether ``rank`` has enqueued its call; None: the evidence does not show it."""
    if rank in instance.calls:
        return True
    if info is None or (instance.stream == "group" and not info.records_creations):
        return None
    if len(instance.key) != 3 or instance.stream != "collective":
        return False if info.complete else None
    progress = info.progress.get(instance.group.id)
    if progress is None:
        return False if info.complete else None
    if progress.enqueued is not None:
        return progress.enqueued >= instance.key[2]
    return None
