"""Ranks that were aborted because they waited. A watchdog's SIGABRT is no cause if the wait has another cause."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from otel_fr.communication_errors import BACKEND, WAIT
from otel_fr.match.facts.calls import is_stalled, stragglers
from otel_fr.match.facts.endings import culprit_deaths, raised_ranks
from otel_fr.match.facts.instances import Instance, InstanceKey, instance_key
from otel_fr.match.facts.known import Facts
from otel_fr.match.facts.ranks import is_device_error
from otel_fr.match.graph.device import open_calls, stuck_devices
from otel_fr.match.graph.nodes import Node, cycles, sources
from otel_fr.match.graph.waiting import build
from otel_fr.match.model import Call, CallState, Ending, Evidence, Rank


def separate(facts: Facts) -> tuple[frozenset[int], frozenset[int], dict[InstanceKey, Node]]:
    """Separate the endings that are a cause from those that follow from a wait.

    A rank that was aborted while it waited is a victim if the wait-for graph, in which it still waits, leads from it to
    another cause. If it leads to none, nothing shows why the rank was aborted, so its ending is the cause.

    Returns:
        ranks whose ending is a cause; aborted ranks whose ending is not; the nodes of the wait-for graph.
    """
    aborted = aborted_ranks(facts)
    deaths = culprit_deaths(facts, aborted)
    nodes = build(facts, deaths)
    if not aborted:
        return deaths, aborted, nodes
    victims = _explained(facts, nodes, deaths, aborted)
    if victims != aborted:
        deaths = culprit_deaths(facts, victims)
        nodes = build(facts, deaths)
    return deaths, victims, nodes


def _explained(
    facts: Facts, nodes: Mapping[InstanceKey, Node], deaths: frozenset[int], aborted: frozenset[int]
) -> frozenset[int]:
    """Return the aborted ranks whose wait has a cause."""
    explaining = {key for keys in cycles(nodes) for key in keys}
    explaining.update(key for key, node in nodes.items() if _has_cause(facts.evidence, node, aborted))
    stuck = stuck_devices(facts, nodes, open_calls(facts), deaths, explaining)
    explaining.update(key for device in stuck for key in device.behind)
    explained = {device.rank for device in stuck}
    explained.update(rank for node in nodes.values() if node.is_blocked_by_device for rank in node.not_begun)
    found = _leading_to(nodes, explaining)
    explained.update(rank for key in found for rank in nodes[key].waiting)
    # A rank whose newest call has an unknown state waited in that call.
    newest = (facts.lasts[rank].call for rank in aborted if rank in facts.lasts)
    unseen = (call for call in newest if call.state is CallState.UNKNOWN)
    explained.update(call.rank for call in unseen if instance_key(call) in found)
    return aborted & explained


def _has_cause(evidence: Evidence, node: Node, aborted: Container[int]) -> bool:
    """True if this node alone shows a cause, without the nodes that it waits for."""
    if node.mismatch is not None or node.dead:
        return True
    if node.behind is None and node.culprits:
        return not node.undecided
    if node.behind is not None or not set(node.instance.members) <= set(node.instance.calls):
        return False
    calls = [node.instance.call(rank) for rank in node.instance.members]
    return bool(stragglers(calls, aborted)) or is_stalled(calls, evidence, aborted)


def _leading_to(nodes: Mapping[InstanceKey, Node], ends: Iterable[InstanceKey]) -> set[InstanceKey]:
    """Return the nodes from which one of ``ends`` is reached, including these."""
    before = sources(nodes)
    found = {key for key in ends if key in nodes}
    todo = list(found)
    while todo:
        for key in before.get(todo.pop(), ()):
            if key not in found:
                found.add(key)
                todo.append(key)
    return found


def aborted_ranks(facts: Facts) -> frozenset[int]:
    """Return the ranks that ended as a watchdog ends them, after one of their calls had not ended within the window.

    Source of the rule: NCCL's watchdog ends the process with SIGABRT at the call's timeout, or the exception reaches
    the caller (`otel_fr.communication_errors.BACKEND`). If the program itself limits the wait, another exception ends
    it. Whether these ranks are victims depends on what they waited for.
    """
    evidence = facts.evidence
    ended = {r for r, info in evidence.ranks.items() if _ended_as_aborted(info)}
    ended |= _raised_in_a_wait(facts)
    ended -= {r for r in ended if is_device_error(evidence.ranks[r].exception)}
    times: dict[int, list[float | None]] = {}
    for call in evidence.calls if ended else ():
        if call.rank in ended and call.state is not CallState.COMPLETED and not call.left:
            times.setdefault(call.rank, []).append(call.lasted)
    return frozenset(r for r, waited in times.items() if _reach(waited, evidence.window))


def _raised_in_a_wait(facts: Facts) -> set[int]:
    """Return ranks that an exception ended while they waited in their newest call, which had lasted for the window.

    Either the exception ended the call, before its timeout. Or the call is still in flight. The exception may then also
    come from elsewhere, so it counts only in two cases: torch says that a wait took too long, or another rank has
    waited for the window as well, in the same call, or for a rank that is missing from it (but not for this rank).
    """
    evidence = facts.evidence
    found: set[int] = set()
    open_: dict[int, Call] = {}
    for r in raised_ranks(evidence) & facts.lasts.keys():
        call = facts.lasts[r].call
        if _lasted(call, evidence.window):
            if call.state is CallState.FAILED:
                found.update([r] if call.error != "timeout" else [])
            elif evidence.ranks[r].exception.startswith(WAIT):
                found.add(r)
            else:
                open_[r] = call
    waiting_for = _waiting_for(facts) if open_ else {}
    beside: dict[InstanceKey, set[int]] = {}
    for r, call in open_.items():
        key = instance_key(call)
        instance = facts.instances.get(key) if key is not None else None
        if instance is None:
            continue
        if instance.key not in beside:
            lasting = {other for other in instance.calls if _lasted(instance.call(other), evidence.window)}
            beside[instance.key] = lasting.union(*(waiting_for.get(m, ()) for m in _missing(facts, instance)))
        if not beside[instance.key] <= {r}:
            found.add(r)
    return found


def _waiting_for(facts: Facts) -> dict[int, list[int]]:
    """Return, for each rank that is missing from a call, two of the ranks that have waited there for the window."""
    found: dict[int, list[int]] = {}
    for instance in facts.instances.values():
        waiting = [r for r in instance.calls if _lasted(instance.call(r), facts.evidence.window)]
        for r in _missing(facts, instance) if waiting else ():
            known = found.setdefault(r, [])
            known.extend([other for other in waiting[:2] if other not in known][: 2 - len(known)])
    return found


def _missing(facts: Facts, instance: Instance) -> list[int]:
    return [r for r in instance.members if not facts.has_joined(instance, r)]


def _lasted(call: Call, window: float) -> bool:
    """True if the call has not completed, and is known to have lasted for the window."""
    is_over = call.state is CallState.COMPLETED or call.left
    return not is_over and call.lasted is not None and call.lasted >= window


def _ended_as_aborted(info: Rank) -> bool:
    raised = info.ending is Ending.RAISED
    return info.was_aborted or (raised and (info.exception.startswith(BACKEND) or _exited_at_once(info)))


def _exited_at_once(info: Rank) -> bool:
    """True if ``os._exit`` ended the rank: its status is not 0, without an exception or the interpreter's exit.

    While the main thread waits in a call, only another thread can do that: the program's own watchdog, or
    ``faulthandler.dump_traceback_later(exit=True)``.
    """
    return not info.exception and not info.exiting and bool(info.exit_code)


def _reach(times: Iterable[float | None], window: float) -> bool:
    """True if the longest of these times is, or may be, as long as the window.

    Unknown times count only if all are unknown: the time of a rank's newest call in flight is always known.
    """
    known = [time for time in times if time is not None]
    return not known or max(known) >= window
