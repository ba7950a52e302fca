"""What evidence without findings leaves open: "cannot be decided", said instead of a guess."""

from __future__ import annotations

from otel_fr.match import sentences
from otel_fr.match.findings import Case
from otel_fr.match.instances import InstanceKey
from otel_fr.match.model import CallState, Evidence
from otel_fr.match.waiting import Node, fronts, inverted

MAX_TOLD = 4


def open_questions(evidence: Evidence) -> list[str]:
    """Sentences on what may be a fault, where `diagnose` found none because the evidence does not tell.

    A recorder that does not tell since when a call is open cannot tell one that stands still from one under way.
    """
    open_: dict[InstanceKey, Node] = {}
    for key, node in Case(evidence).nodes.items():
        calls = [node.instance.calls[rank][-1] for rank in node.instance.members if rank in node.instance.calls]
        if len(calls) == len(node.instance.members) and all(
            c.state is CallState.IN_FLIGHT and c.age is None for c in calls
        ):
            open_[key] = node
    sets = fronts(open_)
    told = []
    for first, rest in sets[:MAX_TOLD]:
        text = (
            f"all members joined {sentences.instance_text(open_[first].instance)} and it had not completed:"
            " whether it stands still (a fault of the network or of a device) or was under way cannot be told"
        )
        turned = inverted([open_[key] for key in (first, *rest)])
        told.append(text if turned is None else f"{text}; if it stands still: {sentences.inverted_text(*turned)}")
    if len(sets) > MAX_TOLD:
        told.append(f"the same of {len(sets) - MAX_TOLD} more sets of ranks")
    return told
