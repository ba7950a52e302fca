"""The nodes of the wait-for graph: an instance in which ranks wait, and for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.mismatch import Mismatch


@dataclass(slots=True)
class Node:
    """An instance in which ranks wait.

    Attributes:
        waiting: the ranks that wait in it, ascending.
        is_left: its calls failed, and all these ranks have gone on: they waited for what the others did then.
        dead: members whose ending is a cause and blocks it.
        idle: members that have not joined and wait nowhere.
        not_begun: members that have joined, whose device has not begun it and waits in no other call.
        silent: members about which nothing is known.
        unrecorded: members whose calls are not known: their recording has gaps or, of a creation, their
            recorder records none.
        next: member that has not joined, or whose device has not begun it -> the instances in which it waits instead.
        undecided: members that may still join or begin it (they made progress within the window).
        behind: an instance that must end first: of the same group, or enqueued earlier by a rank that waits in both.
        mismatch: the mismatch from which it follows.
    """

    instance: Instance
    waiting: tuple[int, ...]
    is_left: bool = False
    dead: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    not_begun: list[int] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    unrecorded: list[int] = field(default_factory=list)
    next: dict[int, list[InstanceKey]] = field(default_factory=dict)
    undecided: list[int] = field(default_factory=list)
    behind: InstanceKey | None = None
    mismatch: Mismatch | None = None

    @property
    def culprits(self) -> list[int]:
        """Members that block it and wait for no rank: dead ones before others, and known ones before silent ones."""
        return self.dead or self.idle or self.not_begun or ([] if self.next else self.silent)

    @property
    def age(self) -> float | None:
        """Seconds that the longest waiting rank has waited, or did; None: unknown."""
        return waited(self.instance, self.waiting)

    @property
    def is_blocked_by_device(self) -> bool:
        """All that is known to block it are devices that have not begun it."""
        return self.culprits is self.not_begun and bool(self.not_begun) and not self.undecided and self.behind is None

    @property
    def targets(self) -> list[InstanceKey]:
        """The instances this one waits for, in the order of the members that wait there."""
        ahead = [key for rank in sorted(self.next) for key in self.next[rank]]
        return [*([self.behind] if self.behind else []), *ahead]


def waited(instance: Instance, ranks: Iterable[int]) -> float | None:
    """Seconds that these ranks have waited in the instance, or did, at most; None: unknown."""
    times = [instance.call(rank).lasted for rank in ranks if rank in instance.calls]
    return max((seconds for seconds in times if seconds is not None), default=None)
