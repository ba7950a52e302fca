"""What the evidence leaves open where it shows no fault: said as undecided instead of guessed."""

from __future__ import annotations

from otel_fr.match import sentences
from otel_fr.match.case import Case
from otel_fr.match.cycles import inverted
from otel_fr.match.instances import InstanceKey
from otel_fr.match.model import CallState, Evidence
from otel_fr.match.waiting import Node, fronts
from otel_fr.presentation import count_text

MAX_QUESTIONS = 4
"""Open collectives that are named; the rest are counted."""


def open_questions(evidence: Evidence) -> list[str]:
    """Sentences on what may be a fault, where `diagnose` found none because the evidence is not enough.

    Without the time since when a call is in flight, a blocked call and a running one look the same.
    """
    open_: dict[InstanceKey, Node] = {}
    for key, node in Case(evidence).nodes.items():
        calls = [node.instance.calls[rank][-1] for rank in node.instance.members if rank in node.instance.calls]
        if len(calls) == len(node.instance.members) and all(
            c.state is CallState.IN_FLIGHT and c.age is None for c in calls
        ):
            open_[key] = node
    sets = fronts(open_)
    questions = []
    for first, rest in sets[:MAX_QUESTIONS]:
        text = (
            f"all members joined {sentences.instance_text(open_[first].instance)}, which had not completed:"
            " the evidence does not show whether it is blocked (by the network or a device) or was still running"
        )
        turned = inverted([open_[key] for key in (first, *rest)])
        questions.append(text if turned is None else f"{text}; if it is blocked: {sentences.inverted_text(*turned)}")
    if len(sets) > MAX_QUESTIONS:
        questions.append(f"the same holds for {count_text(len(sets) - MAX_QUESTIONS, 'more set')} of ranks")
    return questions
