"""Whether a rank that others wait for may still join, and whether its device has begun what the rank has enqueued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from otel_fr.match.facts.calls import gave_up, is_posted
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.known import Facts
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import UNENDED, Call, CallState, Ending, Evidence, Rank


class Patience:
    """For one judgement: whether ranks that move may still join a call."""

    def __init__(self, facts: Facts) -> None:
        self._evidence, self._lasts = facts.evidence, facts.lasts

    def of(self, instance: Instance) -> float:
        """Return for how many seconds a member may not move and still join.

        That is the window, or less if ranks ended by a shorter timeout of their call: what a member does outside of
        calls after they gave up does not matter to them.
        """
        seconds = self._evidence.window
        for call in (instance.call(r) for r in instance.calls):
            info = self._evidence.ranks.get(call.rank)
            if gave_up(call) and not call.left and info is not None and info.ending is not Ending.RUNNING:
                seconds = min(seconds, call.duration or seconds)
        return seconds

    def may_join(self, info: Rank, seconds: float) -> bool:
        """True if the rank is alive and has enqueued or ended a call within ``seconds`` (as returned by `of`).

        A rank with a call in flight may wait for another rank. Then the window applies, from when its device or thread
        began to wait in that call. That may be long after the rank enqueued it.
        """
        if info.ending is not Ending.RUNNING or info.idle is None:
            return False
        if seconds >= self._evidence.window or info.rank in self._busy:
            return min(info.idle, self._waits_since.get(info.rank, info.idle)) < self._evidence.window
        return max(info.idle, self._since_its_newest(info.rank)) < seconds

    @cached_property
    def _busy(self) -> set[int]:
        return {call.rank for call in self._evidence.calls if call.state in UNENDED}

    @cached_property
    def _waits_since(self) -> dict[int, float]:
        """For each rank, the age of the call in which its device or thread began to wait last."""
        found: dict[int, float] = {}
        for call in self._evidence.calls:
            if call.state is CallState.IN_FLIGHT and not call.queued and call.age:
                found[call.rank] = min(call.age, found.get(call.rank, call.age))
        return found

    def _since_its_newest(self, rank: int) -> float:
        """Return the seconds since the rank's newest call ended. If a report is late, `Rank.idle` is shorter."""
        call = self._lasts[rank].call if rank in self._lasts else None
        return 0.0 if call is None or call.age is None or call.duration is None else call.age - call.duration


class Queues:
    """For one judgement: the devices' queues.

    Source of the rule: a device begins a collective once all that its rank enqueued before has ended there, as far as
    streams depend on each other. Peers whose devices have begun the collective wait for that device.
    """

    def __init__(self, evidence: Evidence, nodes: Mapping[InstanceKey, Node]) -> None:
        self._evidence = evidence
        self._nodes = nodes

    def sort(self, node: Node, rank: int, waits: Iterable[InstanceKey]) -> None:
        """Add a member that has joined the node's instance to one of the node's lists, if its device has not begun it.

        Args:
            waits: where the rank waits.
        """
        instance, info = node.instance, self._evidence.ranks.get(rank)
        call = instance.call(rank) if rank in instance.calls else None
        if call is None or info is None or info.ending in (Ending.UNKNOWN, Ending.CLEAN):
            return
        if not (is_queued(call) or (is_posted(call) and call.state is CallState.IN_FLIGHT)):
            return
        if not any(has_begun(instance.call(peer)) for peer in node.waiting):
            return  # No other device waits for this rank's device.
        ahead = [key for key in waits if self._is_ahead(key, rank, call)]
        if ahead:
            node.next[rank] = ahead
        elif is_posted(call):
            return  # It may have ended: gloo shows that only to a thread that waits.
        elif self._moves(call):
            node.undecided.append(rank)
        else:
            node.not_begun.append(rank)

    def _is_ahead(self, key: InstanceKey, rank: int, call: Call) -> bool:
        """True if the rank enqueued its call in that instance earlier, and its device has begun it."""
        before = self._nodes[key].instance.call(rank)
        return before.record < call.record and not before.queued

    def _moves(self, call: Call) -> bool:
        """True if the rank has enqueued or ended a call within the window, or its device has begun an earlier one."""
        info, window = self._evidence.ranks[call.rank], self._evidence.window
        if info.ending is Ending.RUNNING and info.idle is not None and info.idle < window:
            return True
        begun = self._begun_lately.get(call.rank)
        return begun is not None and begun < call.record

    @cached_property
    def _begun_lately(self) -> dict[int, int]:
        """For each rank, the record of the first call in flight that its device has begun within the window."""
        found: dict[int, int] = {}
        for call in self._evidence.calls:
            is_begun = call.state is CallState.IN_FLIGHT and not call.queued
            if is_begun and call.age is not None and call.age < self._evidence.window:
                found[call.rank] = min(call.record, found.get(call.rank, call.record))
        return found


def is_queued(call: Call) -> bool:
    """True if the call's device has not begun it, or had not when PyTorch gave the call up."""
    return call.queued is True and not call.caught and call.state in (CallState.IN_FLIGHT, CallState.FAILED)


def has_begun(call: Call) -> bool:
    """True if the call's device has begun it, and is not known to have completed it."""
    return not call.queued and call.state in (CallState.IN_FLIGHT, CallState.FAILED)
