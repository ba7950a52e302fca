"""Incomplete instances, and how the states of one call from two sources are merged."""

from __future__ import annotations

from dataclasses import dataclass, field

from otel_fr.match import UNENDED, CallState, Signature
from otel_fr.match.facts.instances import InstanceKey
from otel_fr_collector.jobs.calls import CompactCall, RankCall, expand, weight_of, weight_of_texts

INSTANCE_WEIGHT = 2
"""Weight of an incomplete instance without its calls, in units of one call (about 0.3 kB)."""


@dataclass(slots=True)
class IncompleteInstance:
    """One collective (or send with its receive) that not all members are known to have completed.

    Attributes:
        members: how many ranks take part; 0: not known yet.
        calls: rank -> its call. extra: further calls of the same number (a coalesced batch) by (rank, record).
        counts: rank -> number of its calls, for ranks with more than one. longest: the highest of these numbers.
        unsettled: how many of its calls are not known to have completed.
        compared_at: how many calls there were when the ranks' batches were last compared. batch_disagreed: the result.
        signature: the signature of all calls so far, so none can disagree; None: they differ, or the pieces matter.
        weight: in units of one call; without the calls, except for their long texts.
    """

    key: InstanceKey
    members: int
    calls: dict[int, RankCall | CompactCall] = field(default_factory=dict)
    extra: dict[tuple[int, int], RankCall] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    longest: int = 1
    compared_at: int = 0
    batch_disagreed: bool = False
    disagrees: bool = False
    unsettled: int = 0
    signature: Signature | None = None
    weight: int = INSTANCE_WEIGHT

    def all_calls(self) -> list[RankCall]:
        return [*map(expand, self.calls.values()), *self.extra.values()]

    def first_of(self, rank: int) -> RankCall | None:
        """The rank's call; of a batch, the call that arrived first."""
        known = self.calls.get(rank)
        if known is None or isinstance(known, RankCall):
            return known
        call = self.calls[rank] = expand(known)
        return call

    def find(self, rank: int, record: int) -> RankCall | None:
        """The rank's call with that record number."""
        first = self.first_of(rank)
        if first is not None and first.record == record:
            return first
        return self.extra.get((rank, record))

    @property
    def is_complete(self) -> bool:
        """Whether all members have joined and completed, each with as many calls as the others."""
        if not self.members or len(self.calls) < self.members or self.unsettled:
            return False
        return not self.extra or self.is_even_batch

    @property
    def is_even_batch(self) -> bool:
        """Whether all members have joined, each with as many calls as the others."""
        count = len(self.calls)
        return count >= self.members and count + len(self.extra) == count * self.longest

    def add_extra(self, call: RankCall) -> None:
        """Add another call of a rank that already has a call."""
        self.extra[call.rank, call.record] = call
        own = self.counts[call.rank] = self.counts.get(call.rank, 1) + 1
        self.longest = max(self.longest, own)

    def by_rank(self) -> dict[int, list[RankCall]]:
        """Each rank's calls in its own order."""
        calls = {rank: [expand(call)] for rank, call in self.calls.items()}
        for call in self.extra.values():
            calls[call.rank].append(call)
        for own in calls.values():
            own.sort(key=lambda p: p.record)
        return calls


def own_weight(call: RankCall) -> int:
    """Weight of a call's signature and long texts, in units of one call."""
    return weight_of(call.signature) + weight_of_texts(call.group, call.site, call.error)


def _is_queued(newer: RankCall, other: RankCall) -> bool | None:
    """Merge `RankCall.is_queued`, which spans do not show."""
    if newer.is_queued is not False or newer.state is CallState.COMPLETED:
        return newer.is_queued
    return other.is_queued is True and newer.enqueued_at is None


def merge(old: RankCall, new: RankCall) -> RankCall:
    """Merge the states of one call from two sources. An ended call never becomes one in flight again."""
    ended = (CallState.COMPLETED, CallState.FAILED)
    newer = old if old.state in ended and new.state not in ended else new
    if old.state is CallState.FAILED:
        newer = old
    other = new if newer is old else old
    known = [call.enqueued_at for call in (newer, other) if call.enqueued_at is not None]
    # The earlier time is better, because its source took less time to arrive. A posted call has no time yet.
    enqueued_at = None if newer.is_posted else min(known, default=None)
    posted = other.is_posted and enqueued_at is None and newer.state in UNENDED
    return newer._replace(
        enqueued_at=enqueued_at,
        age=other.age if posted and not other.is_queued else newer.age,
        is_queued=_is_queued(newer, other),
        gap=newer.gap if newer.gap is not None else other.gap,
        duration=newer.duration if newer.duration is not None else other.duration,
        before=newer.before or other.before,
        timeout=newer.timeout if newer.timeout is not None else other.timeout,
        enqueued_wall=newer.enqueued_wall if newer.enqueued_wall is not None else other.enqueued_wall,
        site=newer.site or other.site,
        thread=newer.thread or other.thread,
    )
