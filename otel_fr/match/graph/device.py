"""Ranks whose device does not complete their calls, found from what they enqueued and what their peers completed.

Source of the rule: a collective that needs every member's part cannot complete anywhere before each member's device
has done its part of it. A rank that has enqueued such a call and does not complete it, while others completed it
and now wait for that rank in later calls, is blocked by its own device, not by a peer.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from otel_fr.match.facts.calls import is_waiting
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.known import Facts
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import Call, CallState, Ending, Evidence, Rank
from otel_fr.operations import NEEDS_EVERY_RANK

MIN_BEHIND = 2
"""Calls that a rank without call ages must be behind, if others wait for it only in calls that it enqueued. It may be
one call behind just because files were written at different moments."""

SEEN_SECONDS = 4.0
"""Greatest age of what is known about calls on devices: PyTorch's recorder is asked at least every three seconds, or
its answer counts as old (`otel_fr.monitor.nccl.device_calls.FRESH_NS`), and a rank reports each second."""


@dataclass(slots=True, kw_only=True)
class StuckDevice:
    """A rank that its device blocks.

    Attributes:
        first: the first instance, in the rank's own order, that peers completed and the rank did not.
        ahead: a member that has completed more of that group, and its last completed number.
        groups: ids of all groups in which peers completed calls that the rank did not, in the rank's own order.
        behind: every instance that the rank blocks: its calls in flight, and calls that it has not enqueued since.
    """

    rank: int
    first: InstanceKey
    ahead: tuple[int, int]
    groups: tuple[str, ...]
    behind: list[InstanceKey]


class LateCall(NamedTuple):
    """A call that a rank has in flight and that others completed.

    Attributes:
        ahead: the other rank that is furthest ahead, and its last completed number.
        needs_every_rank: nobody could complete it before this rank's device did its part.
        all_others: all other members completed it.
        long_ago: since then, the others have been idle, or ended, for the window and `SEEN_SECONDS`, so this is no lag
            between two ranks' reports or recorders.
    """

    key: InstanceKey
    ahead: tuple[int, int]
    needs_every_rank: bool
    all_others: bool
    long_ago: bool


@dataclass(slots=True)
class OpenCalls:
    """A rank's calls that have been in flight for longer than the window, in its own order; ``late``: some of them."""

    keys: list[InstanceKey]
    late: list[LateCall]


def open_calls(facts: Facts) -> dict[int, OpenCalls]:
    """Return `OpenCalls` for each rank that has any."""
    found: dict[int, OpenCalls] = {}
    in_flight: dict[InstanceKey, int] = {}
    for key, instance in facts.instances.items():
        calls_here = [call for r in instance.calls if (call := instance.call(r)).state is CallState.IN_FLIGHT]
        in_flight[key] = len(calls_here)
        for call in calls_here:
            if is_waiting(call, facts.evidence.window):
                found.setdefault(call.rank, OpenCalls([], [])).keys.append(key)
    for rank, calls in found.items():
        calls.keys.sort(key=lambda key: facts.instances[key].call(rank).record)
        calls.late.extend(_late_calls(facts, rank, calls.keys, in_flight))
    return found


def _late_calls(
    facts: Facts, rank: int, keys: Iterable[InstanceKey], in_flight: Mapping[InstanceKey, int]
) -> Iterator[LateCall]:
    """Yield the rank's late calls. ``in_flight``: how many ranks have the instance in flight."""
    evidence, instances, completions = facts.evidence, facts.instances, facts.completions
    if evidence.ranks[rank].ending is Ending.UNKNOWN:
        return  # It has fallen silent: what was in flight in its last report may long have completed.
    has_ended_well = evidence.ranks[rank].ending is Ending.CLEAN
    held = _held([instances[key] for key in keys if instances[key].p2p is not None], rank)
    for key in keys:
        instance = instances[key]
        if instance.p2p is not None:
            if instance.call(rank).record not in held:
                yield from _late_half(evidence, instance, rank)
            continue
        ahead = next(completions.of(instance), None)
        # Reports may come late, too: a call that was in flight in the last one may have completed.
        if ahead is None or completions.have_left_behind(rank, instance.group.id):
            continue
        if _may_still_complete(evidence, instance.call(rank), ahead[0]):
            continue
        needs_every_rank = instance.call(rank).signature.operation in NEEDS_EVERY_RANK
        if has_ended_well and needs_every_rank and ahead[1] > instance.sequence_id:
            continue  # its device did its part of later calls: its recorder was last read before its process ended
        # Mostly, another rank has the call in flight, too. Then completions need not be counted.
        only = in_flight[key] == 1
        others = [r for r, _ in completions.of(instance)] if only else []
        all_others = only and len(others) + 1 >= len(instance.members)
        long_ago = all_others and all(_is_still_for_long(evidence, r) for r in others)
        yield LateCall(key, ahead, needs_every_rank, all_others, long_ago)


def _held(messages: Sequence[Instance], rank: int) -> set[int]:
    """Return records of messages that a rank called one after the other, if a peer has not completed its half of one.

    They may be a batch, whose messages end together.
    """
    is_open = {one.call(rank).record: _completed_half(one, rank) is None for one in messages}
    batches: list[list[int]] = []
    for record in sorted(is_open):
        if batches and record == batches[-1][-1] + 1:
            batches[-1].append(record)
        else:
            batches.append([record])
    return {record for batch in batches if any(is_open[one] for one in batch) for record in batch}


def _completed_half(message: Instance, rank: int) -> Call | None:
    """Return the call of the rank's peer if the peer has completed it."""
    halves = (message.call(peer) for peer in message.members if peer != rank and peer in message.calls)
    return next((half for half in halves if half.state is CallState.COMPLETED), None)


def _late_half(evidence: Evidence, instance: Instance, rank: int) -> Iterator[LateCall]:
    """Yield the message as a late call if the peer has completed it.

    A call without an age is left out: gloo does not show the end of a call that no thread waits for, and without ages
    such a call looks like any other.
    """
    half = _completed_half(instance, rank)
    if half is not None and instance.call(rank).age is not None:
        long_ago = _is_still_for_long(evidence, half.rank)
        yield LateCall(instance.key, (half.rank, half.sequence_id), False, True, long_ago)


def _may_still_complete(evidence: Evidence, call: Call, ahead: int) -> bool:
    """True if a member completed the collective just now: the rank may be seen to complete it a moment later.

    Without timing, calls age from when they were enqueued, and hosts may be far ahead of devices: a rank that completes
    calls one by one is late in none of them.
    """
    ranks: tuple[int, ...] = (ahead,)
    seconds = evidence.window
    if call.queued is None:
        ranks, seconds = (ahead, call.rank), max(evidence.window, SEEN_SECONDS)
    infos = [evidence.ranks[rank] for rank in ranks]
    return any(info.idle is not None and _still_for(info) < seconds for info in infos)


def _is_still_for_long(evidence: Evidence, rank: int) -> bool:
    return _still_for(evidence.ranks[rank]) >= evidence.window + SEEN_SECONDS


def _still_for(info: Rank) -> float:
    """Seconds since the rank last enqueued or ended a call, as seen from the newest evidence of other ranks."""
    return (info.idle or 0.0) + (info.ended_for or 0.0)


def stuck_devices(
    facts: Facts,
    nodes: Mapping[InstanceKey, Node],
    calls_of: Mapping[int, OpenCalls],
    spared: Container[int],
    explained: Container[InstanceKey],
) -> list[StuckDevice]:
    """Return the ranks whose device blocks others, ascending.

    Args:
        nodes: the wait-for graph.
        calls_of: the result of `open_calls`.
        spared: ranks that are culprits of another finding.
        explained: instances that have a cause already.
    """
    late: dict[int, list[LateCall]] = {}
    for rank, calls in calls_of.items():
        own = [] if rank in spared else [call for call in calls.late if call.key not in explained]
        if own:
            late[rank] = own
    proven = {rank: own for rank, calls in late.items() if (own := [c for c in calls if c.needs_every_rank])}
    wanted: dict[int, list[InstanceKey]] = {}
    for key, node in nodes.items():
        if key not in explained and not proven.keys() >= set(node.waiting):
            for rank in node.next:
                wanted.setdefault(rank, []).append(key)
    others_wait = cache(lambda key: _others_wait(facts, key, proven))
    found: list[StuckDevice] = []
    for rank in sorted(late):
        keys, own = calls_of[rank].keys, late[rank]
        aged = all(facts.instances[call.key].call(rank).age is not None for call in own)
        # The rank waits first in a call that lacks no other rank.
        alone = own[0].key == keys[0] and own[0].all_others
        if rank in wanted:
            is_stuck = rank in proven or alone
        else:
            shared = rank in proven and any(map(others_wait, keys))
            # Nobody waits yet, or only in calls that it has enqueued as well: its report may be older than the others'.
            is_stuck = (alone and aged and own[0].long_ago) or (shared and (aged or len(own) >= MIN_BEHIND))
        if is_stuck:
            first = proven.get(rank, own)[0]
            groups = tuple(dict.fromkeys(call.key[0] for call in own))
            behind = [*keys, *wanted.get(rank, ())]
            found.append(StuckDevice(rank=rank, first=first.key, ahead=first.ahead, groups=groups, behind=behind))
    return found


def _others_wait(facts: Facts, key: InstanceKey, late: Container[int]) -> bool:
    """True if a rank that is not late itself waits in this instance."""
    instance = facts.instances[key]
    return any(
        other not in late
        and instance.call(other).state is CallState.IN_FLIGHT
        and is_waiting(instance.call(other), facts.evidence.window)
        for other in instance.calls
    )
