"""Ranks whose device does not complete their calls, found from what they enqueued and what their peers completed.

Source of the rule: a collective that needs every member's part cannot complete anywhere before each member's device
has done its part of it. A rank that has enqueued such a call and does not complete it, while others completed it
and now wait for that rank in later calls, is blocked by its own device, not by a peer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from otel_fr.match.instances import Instance, InstanceKey, is_waiting
from otel_fr.match.model import CallState, Evidence

NEEDS_EVERY_RANK = frozenset(
    (
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    )
)
"""No rank completes these before every rank has enqueued them."""

MIN_BEHIND = 2
"""Calls that a rank without call ages must be behind: one may come from files written at different moments."""


@dataclass(slots=True, kw_only=True)
class StuckDevice:
    """A rank that its device blocks.

    Attributes:
        first: the first instance, in the rank's own order, that peers completed and it did not.
        ahead: a member that has completed more of that group, and its last completed number.
        behind: every instance that it blocks: its calls in flight.
    """

    rank: int
    first: InstanceKey
    ahead: tuple[int, int]
    behind: list[InstanceKey]


def stuck_devices(
    evidence: Evidence,
    instances: Mapping[InstanceKey, Instance],
    spared: Container[int],
    explained: Container[InstanceKey],
) -> list[StuckDevice]:
    """The ranks whose device blocks others, ascending.

    Args:
        spared: ranks that are culprits of another finding. explained: instances that have a cause already.
    """
    furthest = _furthest(evidence)
    ahead: dict[InstanceKey, tuple[int, int]] = {}
    open_: dict[int, list[InstanceKey]] = {}
    late: dict[int, list[InstanceKey]] = {}
    for key, instance in instances.items():
        for rank in instance.calls:
            call = instance.call(rank)
            if rank in spared or call.state is not CallState.IN_FLIGHT or not is_waiting(call, evidence.window):
                continue
            open_.setdefault(rank, []).append(key)
            if call.stream != "collective" or call.signature.operation not in NEEDS_EVERY_RANK or key in explained:
                continue
            peer = _peer_ahead(instance, furthest.get(call.group, []), call.sequence_id)
            if peer is not None:
                ahead[key] = peer
                late.setdefault(rank, []).append(key)
    found: list[StuckDevice] = []
    for rank in sorted(late):
        calls = sorted(late[rank], key=lambda key: instances[key].call(rank).record)
        aged = all(instances[key].call(rank).age is not None for key in calls)
        held = [key for key in open_[rank] if _others_wait(instances[key], rank, late)]
        if held and (aged or len(calls) >= MIN_BEHIND):
            found.append(StuckDevice(rank=rank, first=calls[0], ahead=ahead[calls[0]], behind=open_[rank]))
    return found


def _furthest(evidence: Evidence) -> dict[str, list[tuple[int, int]]]:
    """By group: (rank, last completed number), highest number first."""
    found: dict[str, list[tuple[int, int]]] = {}
    for rank in sorted(evidence.ranks):
        for group, progress in evidence.ranks[rank].progress.items():
            if progress.completed:
                found.setdefault(group, []).append((rank, progress.completed))
    return {group: sorted(entries, key=lambda e: (-e[1], e[0])) for group, entries in found.items()}


def _peer_ahead(instance: Instance, furthest: list[tuple[int, int]], number: int) -> tuple[int, int] | None:
    """The furthest rank of those that completed the instance. (A rank's calls need not complete in order.)"""
    for rank, completed in furthest:
        if completed < number:
            return None
        if rank not in instance.calls or instance.call(rank).state is CallState.COMPLETED:
            return rank, completed
    return None


def _others_wait(instance: Instance, rank: int, late: Mapping[int, object]) -> bool:
    """True if a rank that is not late itself waits in this instance, which ``rank`` has enqueued too."""
    return any(
        other != rank and other not in late and instance.call(other).state is CallState.IN_FLIGHT
        for other in instance.calls
    )
