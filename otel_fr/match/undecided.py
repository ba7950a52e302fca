"""What evidence without findings leaves open. It is reported as undecided instead of guessed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from otel_fr.match.case import Case
from otel_fr.match.facts.calls import is_waiting
from otel_fr.match.facts.instances import Instance, InstanceKey, has_joined
from otel_fr.match.graph.movement import is_queued
from otel_fr.match.graph.nodes import Node, fronts, inverted
from otel_fr.match.model import CallState, Evidence
from otel_fr.match.texts import sentences
from otel_fr.match.texts.calls import call_text, instance_text
from otel_fr.presentation import count_text, ranks_text, verb

MAX_QUESTIONS = 4
"""Open collectives that are named. The others are counted."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """Ranks that others may be waiting for, and the reason as a sentence."""

    ranks: tuple[int, ...]
    reason: str


def open_questions(evidence: Evidence) -> list[str]:
    """Return sentences on possible faults, for evidence that was not sufficient for `diagnose` to find one.

    If it is unknown how long a call has been in flight, a blocked call and a running one look the same.
    """
    case = Case(evidence)
    open_ = _joined_by_all(case)
    sets = fronts(open_)
    questions = []
    for first, rest in sets[:MAX_QUESTIONS]:
        text = (
            f"all members joined {instance_text(open_[first].instance)}, which had not completed:"
            " the evidence does not show whether it is blocked (by the network or a device) or was still running"
        )
        turned = inverted([open_[key] for key in (first, *rest)])
        if turned is not None:
            text += f"; if it is blocked: {sentences.inverted_text(*turned, case.machines)}"
        questions.append(text)
    if len(sets) > MAX_QUESTIONS:
        questions.append(f"the same holds for {count_text(len(sets) - MAX_QUESTIONS, 'more set')} of ranks")
    return questions


def suspects(case: Case) -> list[Suspects]:
    """Return the ranks that calls in flight most likely wait for, if `diagnose` names none; the strongest reason first.

    Each rank is listed for its strongest reason only.
    """
    found: list[Suspects] = []
    known: set[int] = set()
    for ranks, reason in (
        *_behind(case),
        *_absent(case),
        *_not_enqueued(case),
        *_alone(case),
        *_messages(case.evidence),
        *_joined(case),
    ):
        new = tuple(rank for rank in ranks if rank not in known)
        if new:
            known.update(new)
            found.append(Suspects(new, reason))
    return found


def lagging_calls(case: Case) -> set[tuple[int, int]]:
    """Return (rank, record) of calls in flight that another rank has completed. For a moment, this is normal."""
    found: set[tuple[int, int]] = set()
    for instance in case.instances.values():
        open_ = [c for calls in instance.calls.values() for c in calls if c.state is CallState.IN_FLIGHT]
        ended = any(calls[-1].state is CallState.COMPLETED for calls in instance.calls.values())
        if open_ and (ended or next(case.completions.of(instance), None) is not None):
            found.update((call.rank, call.record) for call in open_)
    return found


def _behind(case: Case) -> Iterator[tuple[tuple[int, ...], str]]:
    """Ranks with calls in flight that others completed. Ranks with the most such calls come first."""
    late = [(rank, calls.late) for rank, calls in case.open_calls.items()]
    for rank, calls in sorted(late, key=lambda item: (-len(item[1]), item[0])):
        if calls:
            text = instance_text(case.instances[calls[0].key])
            yield (rank,), f"rank {rank} has {text} in flight, which rank {calls[0].ahead[0]} completed"


def _absent(case: Case) -> Iterator[tuple[tuple[int, ...], str]]:
    """Ranks that have not joined a call in which others wait, or are not known to have joined it."""
    for node in case.nodes.values():
        where = f"{ranks_text(node.waiting)} {verb(node.waiting, 'waits', 'wait')} in"
        where += f" {instance_text(node.instance)}"
        missing, untold = [*node.dead, *node.idle], [*node.silent, *node.undecided, *node.unrecorded]
        if missing:
            yield tuple(missing), f"{where}, which {ranks_text(missing)} {verb(missing, 'has', 'have')} not joined"
        if untold:
            yield tuple(untold), f"{where}; it is not known whether {ranks_text(untold)} joined it"


def _not_enqueued(case: Case) -> Iterator[tuple[tuple[int, ...], str]]:
    """Ranks that have not enqueued a call that is still queued on their peers' devices, calls of most ranks first."""
    found: list[tuple[list[int], list[int], Instance]] = []
    for key, instance in case.instances.items():
        open_ = [rank for rank in instance.calls if is_queued(instance.call(rank))]
        if not open_ or key in case.nodes:
            continue
        absent = [r for r in instance.members if has_joined(instance, r, case.evidence.ranks.get(r)) is False]
        if absent:
            found.append((absent, open_, instance))
    for absent, open_, instance in sorted(found, key=lambda one: (len(one[0]) - len(one[1]), one[2].sequence_id)):
        verbs = verb(absent, "has", "have"), verb(open_, "has", "have")
        text = f"{ranks_text(absent)} {verbs[0]} not enqueued {instance_text(instance)}, which {ranks_text(open_)}"
        yield tuple(absent), f"{text} {verbs[1]}"


def _alone(case: Case) -> Iterator[tuple[tuple[int, ...], str]]:
    """Ranks whose first wait is in a call in which no other rank waits."""
    first: dict[int, Node] = {}
    for node in case.nodes.values():
        for rank in node.waiting:
            known = first.setdefault(rank, node)
            if node.instance.call(rank).record < known.instance.call(rank).record:
                first[rank] = node
    for rank, node in sorted(first.items()):
        if node.waiting == (rank,):
            yield (rank,), f"rank {rank} waits alone in {instance_text(node.instance)}"


def _messages(evidence: Evidence) -> Iterator[tuple[tuple[int, ...], str]]:
    """Both ends of messages in flight whose counterpart is not known."""
    for call in sorted(evidence.calls, key=lambda call: (call.rank, call.record)):
        peer = call.signature.peer
        if call.stream != "p2p" or call.state is not CallState.IN_FLIGHT or not is_waiting(call, evidence.window):
            continue
        if call.signature.any_source and peer is not None:
            text = f"rank {call.rank} waits in {call_text(evidence, call)}, whose counterpart is not known"
            yield (peer, call.rank), text


def _joined(case: Case) -> Iterator[tuple[tuple[int, ...], str]]:
    """All members of collectives that do not complete although all of them have joined."""
    open_ = _joined_by_all(case)
    for first, _ in fronts(open_):
        instance = open_[first].instance
        yield instance.members, f"all members joined {instance_text(instance)}, which had not completed"


def _joined_by_all(case: Case) -> dict[InstanceKey, Node]:
    """The nodes that all members joined, if it is unknown since when their calls are in flight."""
    open_: dict[InstanceKey, Node] = {}
    for key, node in case.nodes.items():
        calls = [node.instance.calls[rank][-1] for rank in node.instance.members if rank in node.instance.calls]
        if len(calls) == len(node.instance.members) and all(
            c.state is CallState.IN_FLIGHT and c.age is None for c in calls
        ):
            open_[key] = node
    return open_
