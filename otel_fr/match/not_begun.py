"""Findings about ranks whose device has not begun a call that the devices of others wait in."""

from __future__ import annotations

from otel_fr.match import device_sentences
from otel_fr.match.case import Case
from otel_fr.match.model import Category
from otel_fr.match.nodes import Node


def name_devices(case: Case) -> None:
    """Add the ranks that others wait for on their devices, each where its own device would begin first."""
    nodes = [node for key, node in case.nodes.items() if key not in case.cause_of and node.is_blocked_by_device]
    known = {rank: cause.key for cause in reversed(case.lasting) for rank in cause.culprit_ranks}
    for node in sorted(nodes, key=lambda node: (_first_record(node), node.instance.name)):
        named = [known[rank] for rank in node.not_begun if rank in known]
        if named:
            case.cause_of[node.instance.key] = named[0]
            continue
        culprits = node.not_begun
        waiting = [rank for rank in node.waiting if rank not in culprits]
        summary = device_sentences.not_begun_text(node.instance, culprits, waiting, case.machines)
        finding = case.finding(node.instance, Category.RANK_STUCK, culprits, waiting, summary)
        finding.stuck_on, finding.age = "device", case.age(node)
        case.add(finding)
        known.update(dict.fromkeys(culprits, finding.key))
        case.cause_of[node.instance.key] = finding.key


def _first_record(node: Node) -> int:
    return min(node.instance.call(rank).record for rank in node.not_begun)
