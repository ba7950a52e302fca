"""The calls of one process group, by instance, until the instance is complete; mismatches are found on arrival."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from otel_fr.match import CallState, Group, compare
from otel_fr.match.facts.instances import InstanceKey
from otel_fr.operations import PIECEWISE
from otel_fr.waits.blocks import StragglerLimits
from otel_fr_collector.jobs.bounded import Ranges
from otel_fr_collector.jobs.calls import (
    CompactCall,
    RankCall,
    Template,
    bare,
    expand,
    is_even,
    weight_of,
    weight_of_texts,
)
from otel_fr_collector.jobs.fingerprints import Fingerprints
from otel_fr_collector.jobs.incomplete import INSTANCE_WEIGHT, IncompleteInstance, merge, own_weight
from otel_fr_collector.jobs.usage import Usage
from otel_fr_collector.jobs.waits import Waits

MAX_INCOMPLETE = 20_000
"""Incomplete instances of one group; the oldest are evicted first. Without a collector, a monitor queues as many spans
(otel_fr/monitor/telemetry/export.py, MAX_SPANS), so one rank may be that far behind another."""
MAX_EXTRA = 4_096
"""Calls of one instance besides each member's first."""
MANY_CALLS = 64
"""If an instance has this many calls, its batches are compared only when they have grown by an eighth."""
MAX_STREAMS = 1_024
"""Streams of one group whose complete instances are remembered. Each pair of ranks and tag counts as a stream."""
MAX_DISAGREEING = 64
"""Disagreeing instances of one group that are kept and judged; the first is the fault, the others repeat it."""
MAX_COMPARED = 32
"""Members with which a new call is compared if every pair may disagree. With more, only the first and the root."""
MAX_PIECES = 64
"""Calls compared at once after the members of their group became known. This takes some milliseconds."""
MAX_INSTANCE_WEIGHT = 20_000
"""If an instance is heavier, only the operation's name is kept of further calls that differ. The first thousands show
the mismatch."""
MAX_CREATED = 4_096
"""Calls of one group that are kept from complete creations of other groups."""
STREAM_WEIGHT = 2
"""Weight of the record of a stream's complete instances, in the unit of `INSTANCE_WEIGHT`."""

_DONE = (CallState.COMPLETED, CallState.UNKNOWN)


class CompletedInstances:
    """Which instances are complete, as ranges of each stream's numbers, so that a repeated span creates no instance."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str | int, ...], Ranges] = {}

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._streams)

    def __contains__(self, key: InstanceKey) -> bool:
        ranges = self._streams.get(key[:-1])
        return ranges is not None and key[-1] in ranges

    def add(self, key: InstanceKey) -> int:
        """Add an instance; returns by how many streams this object has grown."""
        ranges = self._streams.get(key[:-1])
        grown = 0
        if ranges is None:
            grown = 1 if len(self._streams) < MAX_STREAMS else 1 - self.evict_oldest()
            ranges = self._streams[key[:-1]] = Ranges()
        ranges.add(key[-1])
        return grown

    def evict_oldest(self) -> int:
        """Evict the stream begun first; returns the number of evicted streams (1 or 0)."""
        if not self._streams:
            return 0
        del self._streams[next(iter(self._streams))]
        return 1


@dataclass(slots=True)
class GroupState:
    """One process group of one run. ``group.ranks`` is empty until a report names the members.

    Attributes:
        uncompared: instances whose pieces could not be compared on arrival, because the order of the members was not
            known. The values are how many of their calls have been compared since.
        created: the newest complete creations of other groups. They count in ``weight``, but not in ``call_count``.
            created_calls: how many calls they have.
        waits: how long its ranks wait, and for whom.
        fingerprints: whether its ranks made the same collectives. inquiries: how often ranks were asked for calls.
    """

    group: Group
    size: int = 0
    incomplete: dict[InstanceKey, IncompleteInstance] = field(default_factory=dict)
    completed: CompletedInstances = field(default_factory=CompletedInstances)
    uncompared: dict[InstanceKey, int] = field(default_factory=dict)
    created: dict[InstanceKey, IncompleteInstance] = field(default_factory=dict)
    created_calls: int = 0
    disagreeing: int = 0
    call_count: int = 0
    weight: int = 0
    evicted: int = 0
    evicted_calls: int = 0
    waits: Waits = field(default_factory=lambda: Waits(StragglerLimits(), Usage()))
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    inquiries: int = 0

    def learn(self, group: Group, size: int) -> None:
        """Take the members and the size of the group from a span or a report."""
        if group.ranks and not self.group.ranks:
            self.group = group
        self.size = len(self.group.ranks) or self.size or size

    def add(self, call: RankCall) -> bool:
        """Add one call to its instance. Return True if the call makes the instance disagree."""
        key = (call.group, call.stream, call.sequence_id) if call.stream != "p2p" else call.key()
        if key is None:
            return False
        instance = self.incomplete.get(key) or self._reopen(key, call)
        if instance is None:
            if key in self.completed:
                return False
            if call.stream != "p2p" and self.size == 1 and call.state is CallState.COMPLETED:
                return False
            instance = self._create(key, call)
        if not instance.members:
            instance.members = self.size
        if not self.group.ranks and call.signature.operation in PIECEWISE:
            self.uncompared.setdefault(key, 0)
        found = self._put(instance, call) and self._compare(instance, call)
        if not instance.disagrees and instance.is_complete and key not in self.uncompared:
            if instance.extra and instance.compared_at < len(instance.calls) + len(instance.extra):
                found = instance.disagrees = self._compare_batches(instance)
                self.disagreeing += found
            if not instance.disagrees:
                self._complete(instance)
        return found and self.disagreeing <= MAX_DISAGREEING

    def add_completed(self, calls: Iterable[CompactCall]) -> bool:
        """Add completed collectives of one rank, in order. Return True if one makes its instance disagree, see `add`.

        Nearly all have the same signature as the other calls of their instance. For these there is a short path.
        """
        incomplete, uncompared, group_id = self.incomplete, self.uncompared, self.group.id
        found, count = False, 0
        try:
            for call in calls:
                rank, template = call[0], call[1]
                if template.is_end_seen:
                    self.waits.add_timed(call, self.size)
                key = group_id, "collective", call[2]
                instance = incomplete.get(key)
                if instance is None:
                    if self._begin(key, call, template):
                        count += 1
                        continue
                elif instance.signature is template.signature and instance.members and not instance.extra:
                    known = instance.calls
                    if rank not in known:
                        known[rank] = call
                        count += 1
                        if template.text_weight:
                            self._add_weight(instance, template.text_weight)
                        if len(known) >= instance.members and not instance.unsettled and key not in uncompared:
                            self._complete(instance)
                        continue
                found |= self.add(expand(call))
        finally:
            self.call_count += count
            self.weight += count
        return found

    def _begin(self, key: InstanceKey, call: CompactCall, template: Template) -> bool:
        """Create an instance with a completed collective, which the caller counts. False: `add` must do that."""
        if self.size < 2 or template.signature.operation in PIECEWISE or key in self.completed:
            return False
        weight = INSTANCE_WEIGHT + template.weight + template.text_weight
        self.incomplete[key] = IncompleteInstance(
            key, self.size, {call[0]: call}, signature=template.signature, weight=weight
        )
        self.weight += weight
        if len(self.incomplete) > MAX_INCOMPLETE:
            self.evict()
        return True

    def compare_pieces(self) -> bool:
        """Compare calls that came before the members were known (spans may outrun the first report).

        Return True if some disagree. At most `MAX_PIECES` calls are compared at once, because 20,000 instances with
        thousands of calls each would take minutes. The caller repeats this while there are `uncompared` instances.
        """
        if not self.group.ranks:
            return False
        found, left = False, MAX_PIECES
        while self.uncompared and left > 0:
            key, done = next(iter(self.uncompared.items()))
            instance = self.incomplete.get(key)
            calls = [] if instance is None else list(islice(instance.calls.values(), done, done + left))
            if instance is None or not calls:
                del self.uncompared[key]
                left -= 1
                if instance is not None and not instance.disagrees and instance.is_complete:
                    self._complete(instance)
                continue
            self.uncompared[key] = done + len(calls)
            left -= len(calls)
            for call in map(expand, calls):
                found |= self._compare(instance, call)
        return found and self.disagreeing <= MAX_DISAGREEING

    def shows_disagreement(self, first: int, last: int) -> bool:
        """Whether a collective with a number from ``first`` to ``last`` is known to mismatch."""
        if not self.disagreeing:
            return False
        return any(
            instance.disagrees and key[1] == "collective" and first <= key[-1] <= last
            for key, instance in self.incomplete.items()
        )

    def known(self, call: RankCall) -> RankCall | None:
        """The newest state of a reported call: ``call`` if nothing newer is known, None if its instance is complete."""
        key = call.key()
        if key is None:
            return call
        instance = self.incomplete.get(key)
        if instance is None:
            return None if key in self.completed else call
        return instance.find(call.rank, call.record) or call

    def evict(self, *, even_disagreeing: bool = False) -> int:
        """Evict the oldest instance that is not evidence of a mismatch; returns how many calls were in it.

        If there is none, evict the record of the oldest stream's complete instances instead.

        Args:
            even_disagreeing: evict the oldest instance even if it is evidence of a mismatch.
        """
        self._forget_created(0)
        for _ in range(len(self.incomplete)):
            key = next(iter(self.incomplete))
            instance = self.incomplete.pop(key)
            if instance.disagrees and self.disagreeing <= MAX_DISAGREEING and not even_disagreeing:
                self.incomplete[key] = instance
                continue
            self.uncompared.pop(key, None)
            self.disagreeing -= instance.disagrees
            gone = len(instance.calls) + len(instance.extra)
            self.call_count -= gone
            self.weight -= gone + instance.weight
            self.evicted += 1
            self.evicted_calls += gone
            return gone
        self.weight -= self.completed.evict_oldest() * STREAM_WEIGHT
        return 0

    def _create(self, key: InstanceKey, call: RankCall) -> IncompleteInstance:
        signature = call.signature
        weight = INSTANCE_WEIGHT + weight_of(signature)
        members = 2 if call.stream == "p2p" else self.size
        if signature.new_group is not None and not signature.new_group.awaits_all:
            members = len(signature.new_group.ranks) or members
        instance = IncompleteInstance(key, members, signature=signature if is_even(signature) else None, weight=weight)
        self.incomplete[key] = instance
        self.weight += weight
        if len(self.incomplete) > MAX_INCOMPLETE:
            self.evict()
        return instance

    def _put(self, instance: IncompleteInstance, call: RankCall) -> bool:
        """Add the call to the instance; False: it was known before, or there is no room for it."""
        old = instance.find(call.rank, call.record)
        if instance.weight > MAX_INSTANCE_WEIGHT and call.signature is not instance.signature:
            call = bare(call)
        if old is not None:
            if old.says_as_much(call):
                return False
            new = merge(old, call)
            if new.signature is not old.signature or new.site is not old.site:
                self._add_weight(instance, own_weight(new) - own_weight(old))
            instance.unsettled += (new.state not in _DONE) - (old.state not in _DONE)
            if instance.calls[call.rank] is old:
                instance.calls[call.rank] = new
            else:
                instance.extra[call.rank, call.record] = new
            return False
        if call.rank not in instance.calls:
            instance.calls[call.rank] = call
        elif len(instance.extra) < MAX_EXTRA:
            instance.add_extra(call)
        else:
            return False
        if call.signature is not expand(next(iter(instance.calls.values()))).signature:
            instance.signature = None
            self._add_weight(instance, weight_of(call.signature))
        self._add_weight(instance, weight_of_texts(call.group, call.site, call.error))
        instance.unsettled += call.state not in _DONE
        self.call_count += 1
        self.weight += 1
        return True

    def _add_weight(self, instance: IncompleteInstance, weight: int) -> None:
        instance.weight += weight
        self.weight += weight

    def _complete(self, instance: IncompleteInstance) -> None:
        if instance.key[1] == "collective" and not instance.extra:
            self.waits.add(instance.key[-1], instance.calls, self.group.ranks)
        del self.incomplete[instance.key]
        gone = len(instance.calls) + len(instance.extra)
        self.call_count -= gone
        self.weight += self.completed.add(instance.key) * STREAM_WEIGHT
        if instance.key[1] == "group" and gone < self.size:
            self.created[instance.key] = instance
            self.created_calls += gone
            self._forget_created(MAX_CREATED)
        else:
            self.weight -= gone + instance.weight

    def _reopen(self, key: InstanceKey, call: RankCall) -> IncompleteInstance | None:
        """Reopen a complete creation of a group if another rank comes, as it may have created another group.

        The members of a new group do not wait for other ranks, so it is not known how many will come.
        """
        instance = self.created.get(key)
        if instance is None or call.rank in instance.calls:
            return None
        self.incomplete[key] = self.created.pop(key)
        count = len(instance.calls) + len(instance.extra)
        self.created_calls -= count
        self.call_count += count
        return instance

    def _forget_created(self, most: int) -> None:
        """Forget the oldest complete creations until at most ``most`` of their calls are left."""
        while self.created_calls > most:
            instance = self.created.pop(next(iter(self.created)))
            gone = len(instance.calls) + len(instance.extra)
            self.weight -= gone + instance.weight
            self.created_calls -= gone

    def _compare(self, instance: IncompleteInstance, call: RankCall) -> bool:
        """Return True if the new call makes the instance mismatch. If there are batches, they are compared anew."""
        before = instance.disagrees
        if instance.extra:
            instance.disagrees = self._batch_disagrees(instance)
        elif not before:
            instance.disagrees = self._disagrees(instance, call)
        self.disagreeing += instance.disagrees - before
        return instance.disagrees and not before

    def _disagrees(self, instance: IncompleteInstance, call: RankCall) -> bool:
        signature = call.signature
        if instance.signature is signature:
            return False
        others = list(islice(instance.calls.values(), MAX_COMPARED + 1))
        if signature.operation not in PIECEWISE or len(others) > MAX_COMPARED:
            del others[1:]
            if signature.operation in PIECEWISE and signature.root in instance.calls:
                others.append(instance.calls[signature.root])
        return any(self._differ(other, call) for other in map(expand, others) if other.rank != call.rank)

    def _batch_disagrees(self, instance: IncompleteInstance) -> bool:
        """Compare the ranks' batches call by call, once all are there. Until then, missing calls may be on their way.

        If the ranks' calls arrive in turn, the batches are even again and again. To keep the work linear, they are
        compared only when they have grown by an eighth, and before the instance is complete.
        """
        count = len(instance.calls) + len(instance.extra)
        if len(instance.calls) < 2 or not instance.is_even_batch:
            return False
        if MANY_CALLS <= count < instance.compared_at + instance.compared_at // 8:
            return instance.batch_disagreed
        return self._compare_batches(instance)

    def _compare_batches(self, instance: IncompleteInstance) -> bool:
        instance.compared_at = len(instance.calls) + len(instance.extra)
        calls = list(instance.by_rank().values())
        instance.batch_disagreed = any(
            self._differ(a, b) for own in calls[1:] for a, b in zip(calls[0], own, strict=True)
        )
        return instance.batch_disagreed

    def _differ(self, a: RankCall, b: RankCall) -> bool:
        if a.signature is b.signature and a.signature.operation not in PIECEWISE:
            return False
        return compare(self.group, a.as_call(0.0), b.as_call(0.0)) is not None
