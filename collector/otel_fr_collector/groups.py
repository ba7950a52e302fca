"""The calls of one process group lined up while they are open, with their first disagreement noticed as they arrive."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from otel_fr.match import Group, State, compare
from otel_fr.match.instances import InstanceKey
from otel_fr_collector.calls import PAIRWISE, Part

MAX_OPEN = 4_096
"""Instances of one group that are not yet complete; the oldest go first."""
MAX_CLOSED = 4_096
"""Keys of complete instances that are remembered, so that a span sent twice opens nothing."""
MAX_DISAGREEING = 64
"""Disagreeing instances of one group that are kept and judged; the first is the fault, the rest repeat it."""
MAX_COMPARED = 32
"""Members each newcomer is held against where every pair may disagree; beyond it only the first and the root."""


@dataclass(slots=True)
class OpenInstance:
    """One collective (or send with its receive) of which not all members are known to have completed.

    Attributes:
        members: how many ranks take part; 0: not known yet.
        parts: rank -> its call. extra: further calls of the same number (a coalesced batch).
    """

    key: InstanceKey
    members: int
    parts: dict[int, Part] = field(default_factory=dict)
    extra: list[Part] = field(default_factory=list)
    disagrees: bool = False

    def all_parts(self) -> list[Part]:
        return [*self.parts.values(), *self.extra]

    def part(self, rank: int, record: int) -> Part | None:
        """The rank's call with that record number."""
        first = self.parts.get(rank)
        if first is not None and first.record == record:
            return first
        return next((p for p in self.extra if p.rank == rank and p.record == record), None)

    @property
    def is_settled(self) -> bool:
        """Every call known of it has completed."""
        done = (State.COMPLETED, State.UNKNOWN)
        return all(p.state in done for p in self.parts.values()) and all(p.state in done for p in self.extra)

    @property
    def is_complete(self) -> bool:
        """All members are there and have completed, each with as many calls as the others."""
        if not self.members or len(self.parts) < self.members or not self.is_settled:
            return False
        if not self.extra:
            return True
        return len({len(calls) for calls in self.by_rank().values()}) == 1

    def by_rank(self) -> dict[int, list[Part]]:
        """Each rank's calls in its own order."""
        calls = {rank: [part] for rank, part in self.parts.items()}
        for part in self.extra:
            calls[part.rank].append(part)
        for own in calls.values():
            own.sort(key=lambda p: p.record)
        return calls


def merge(old: Part, new: Part) -> Part:
    """What is known of one call after a second word of it. An ended call never goes back to being in flight."""
    ended = (State.COMPLETED, State.FAILED)
    newer = old if old.state in ended and new.state not in ended else new
    if old.state is State.FAILED:
        newer = old
    other = new if newer is old else old
    known = [part.issued for part in (newer, other) if part.issued is not None]
    issued = min(known, default=None)  # the word with the shorter way to us dates the issue best
    return newer._replace(
        issued=issued,
        gap=newer.gap if newer.gap is not None else other.gap,
        duration=newer.duration if newer.duration is not None else other.duration,
        timeout=newer.timeout if newer.timeout is not None else other.timeout,
        issued_wall=newer.issued_wall if newer.issued_wall is not None else other.issued_wall,
        site=newer.site or other.site,
    )


@dataclass(slots=True)
class GroupState:
    """One process group of one run. ``group.ranks`` is empty until a report names the members.

    ``unplaced``: open instances whose pieces could not be held against each other for want of the members' order.
    """

    group: Group
    size: int = 0
    open: dict[InstanceKey, OpenInstance] = field(default_factory=dict)
    closed: set[InstanceKey] = field(default_factory=set)
    closed_order: deque[InstanceKey] = field(default_factory=deque)
    unplaced: set[InstanceKey] = field(default_factory=set)
    disagreeing: int = 0
    parts: int = 0
    evicted: int = 0

    def learn(self, group: Group, size: int) -> None:
        """Take in what a span or a report says of the group itself."""
        if group.ranks and not self.group.ranks:
            self.group = group
        self.size = len(self.group.ranks) or self.size or size

    def add(self, part: Part) -> bool:
        """Put one call in its place. True: it makes its instance disagree, which it did not before."""
        key = part.key()
        if key is None or key in self.closed:
            return False
        instance = self.open.get(key)
        if instance is None:
            if part.stream != "p2p" and self.size == 1 and part.state is State.COMPLETED:
                return False
            instance = self.open[key] = OpenInstance(key, 2 if part.stream == "p2p" else self.size)
            self._make_room()
        elif not instance.members:
            instance.members = self.size
        if not self.group.ranks and part.signature.operation in PAIRWISE:
            self.unplaced.add(key)
        found = self._put(instance, part) and self._judge(instance, part)
        if not instance.disagrees and instance.is_complete and key not in self.unplaced:
            self._close(instance)
        return found and self.disagreeing <= MAX_DISAGREEING

    def place_pieces(self) -> bool:
        """Judge what came before the members were known (spans may outrun the first report). True: some disagree."""
        if not self.group.ranks:
            return False
        found = False
        for instance in [self.open[key] for key in self.unplaced if key in self.open]:
            for part in list(instance.parts.values()):
                found |= self._judge(instance, part)
            if not instance.disagrees and instance.is_complete:
                self._close(instance)
        self.unplaced.clear()
        return found and self.disagreeing <= MAX_DISAGREEING

    def known(self, part: Part) -> Part | None:
        """The newest word of a reported call: as given if nothing newer is known, None if its instance is complete."""
        key = part.key()
        if key is None:
            return part
        if key in self.closed:
            return None
        instance = self.open.get(key)
        return part if instance is None else instance.part(part.rank, part.record) or part

    def evict(self) -> int:
        """Forget the oldest instance that is not evidence of a disagreement; returns how many calls went with it."""
        for _ in range(len(self.open)):
            key = next(iter(self.open))
            instance = self.open.pop(key)
            if instance.disagrees and self.disagreeing <= MAX_DISAGREEING:
                self.open[key] = instance
                continue
            self.unplaced.discard(key)
            self.disagreeing -= instance.disagrees
            gone = len(instance.parts) + len(instance.extra)
            self.parts -= gone
            self.evicted += 1
            return gone
        return 0

    def _make_room(self) -> None:
        if len(self.open) > MAX_OPEN:
            self.evict()

    def _put(self, instance: OpenInstance, part: Part) -> bool:
        old = instance.parts.get(part.rank)
        if old is None:
            instance.parts[part.rank] = part
        elif old.record == part.record:
            instance.parts[part.rank] = merge(old, part)
            return False
        else:
            for index, other in enumerate(instance.extra):
                if other.rank == part.rank and other.record == part.record:
                    instance.extra[index] = merge(other, part)
                    return False
            if len(instance.extra) >= MAX_OPEN:
                return False
            instance.extra.append(part)
        self.parts += 1
        return True

    def _close(self, instance: OpenInstance) -> None:
        del self.open[instance.key]
        self.parts -= len(instance.parts) + len(instance.extra)
        self.closed.add(instance.key)
        self.closed_order.append(instance.key)
        if len(self.closed_order) > MAX_CLOSED:
            self.closed.discard(self.closed_order.popleft())

    def _judge(self, instance: OpenInstance, part: Part) -> bool:
        """Does the newcomer make the instance disagree? One that turns out to be a batch is judged anew as such."""
        before = instance.disagrees
        if instance.extra:
            instance.disagrees = self._batch_disagrees(instance)
        elif not before:
            instance.disagrees = self._disagrees(instance, part)
        self.disagreeing += instance.disagrees - before
        return instance.disagrees and not before

    def _disagrees(self, instance: OpenInstance, part: Part) -> bool:
        signature = part.signature
        others = [other for rank, other in instance.parts.items() if rank != part.rank]
        if signature.operation not in PAIRWISE:
            return bool(others) and others[0].signature is not signature and self._differ(others[0], part)
        if len(others) > MAX_COMPARED:
            root = [instance.parts[signature.root]] if signature.root in instance.parts else []
            others = others[:1] + [other for other in root if other.rank != part.rank]
        return any(self._differ(other, part) for other in others)

    def _batch_disagrees(self, instance: OpenInstance) -> bool:
        """Member by member, once all ranks' batches are there; until then a difference may be one of arrival."""
        calls = list(instance.by_rank().values())
        if len(calls) < instance.members or len({len(own) for own in calls}) != 1:
            return False
        return any(self._differ(a, b) for own in calls[1:] for a, b in zip(calls[0], own, strict=True))

    def _differ(self, a: Part, b: Part) -> bool:
        return compare(self.group, a.call(0.0), b.call(0.0)) is not None
