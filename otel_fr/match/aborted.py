"""Ranks that were aborted because they waited: a watchdog's SIGABRT is no cause if the wait has another one."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from otel_fr.match.cycles import cycles
from otel_fr.match.device import OpenCalls, open_calls, stuck_devices
from otel_fr.match.endings import aborted_ranks, culprit_deaths
from otel_fr.match.instances import Completions, Instance, InstanceKey
from otel_fr.match.joined import is_stalled, stragglers
from otel_fr.match.mismatch import Mismatch
from otel_fr.match.model import Evidence
from otel_fr.match.waiting import Node, build


def separate(
    evidence: Evidence,
    instances: Mapping[InstanceKey, Instance],
    mismatches: list[Mismatch],
    completions: Completions,
) -> tuple[frozenset[int], frozenset[int], dict[InstanceKey, Node]]:
    """Separate the endings that are a cause from those that follow from a wait.

    A rank that was aborted while it waited is a victim if the wait-for graph, with the rank as one that still waits,
    leads from there to another cause. If it leads to none, nothing shows why it was aborted: its ending is the cause.

    Returns:
        ranks whose ending is a cause; aborted ranks whose ending is not; the nodes of the wait-for graph.
    """
    aborted = aborted_ranks(evidence)
    deaths = culprit_deaths(evidence, instances.values(), aborted)
    nodes = build(evidence, instances, mismatches, deaths, completions)
    if not aborted:
        return deaths, aborted, nodes
    calls_of = open_calls(evidence, instances, completions)
    victims = _explained(evidence, instances, nodes, calls_of, deaths, aborted)
    if victims != aborted:
        deaths = culprit_deaths(evidence, instances.values(), victims)
        nodes = build(evidence, instances, mismatches, deaths, completions)
    return deaths, victims, nodes


def _explained(
    evidence: Evidence,
    instances: Mapping[InstanceKey, Instance],
    nodes: Mapping[InstanceKey, Node],
    calls_of: Mapping[int, OpenCalls],
    deaths: frozenset[int],
    aborted: frozenset[int],
) -> frozenset[int]:
    """Those of the aborted ranks whose wait has a cause."""
    explaining = {key for keys in cycles(nodes) for key in keys}
    explaining.update(key for key, node in nodes.items() if _has_cause(evidence, node, aborted))
    stuck = stuck_devices(evidence, instances, nodes, calls_of, deaths, explaining)
    explaining.update(key for device in stuck for key in device.behind)
    explained = {device.rank for device in stuck}
    found = _leading_to(nodes, explaining)
    return aborted & explained.union(*(nodes[key].waiting for key in found))


def _has_cause(evidence: Evidence, node: Node, aborted: Container[int]) -> bool:
    """True if this node alone shows a cause, without the nodes that it waits for."""
    if node.mismatch is not None or node.dead:
        return True
    if node.behind is None and node.culprits:
        return not node.undecided
    if node.behind is not None or not set(node.instance.members) <= set(node.instance.calls):
        return False
    calls = [node.instance.call(rank) for rank in node.instance.members]
    return bool(stragglers(calls, aborted)) or is_stalled(calls, evidence.window, aborted)


def _leading_to(nodes: Mapping[InstanceKey, Node], ends: Iterable[InstanceKey]) -> set[InstanceKey]:
    """The nodes from which one of ``ends`` is reached, with these."""
    before: dict[InstanceKey, list[InstanceKey]] = {}
    for key, node in nodes.items():
        for target in node.targets:
            before.setdefault(target, []).append(key)
    found = {key for key in ends if key in nodes}
    todo = list(found)
    while todo:
        for key in before.get(todo.pop(), ()):
            if key not in found:
                found.add(key)
                todo.append(key)
    return found
