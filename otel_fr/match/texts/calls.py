"""Calls, instances and groups as sentences name them."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr.match.facts.instances import Instance
from otel_fr.match.model import Call, Evidence, Group
from otel_fr.operations import NewGroup
from otel_fr.presentation import collective_text, group_text, ranks_text, verb


def group_of(group: Group) -> str:
    """``"group dp (3)"``."""
    return f"group {group_text(group.name, group.description)}"


def instance_text(instance: Instance) -> str:
    """``"all_reduce number 5 of group dp (3)"``, ``"send number 1 from rank 0 to rank 1 (tag 0) of group dp (3)"``,
    ``"new_group number 2 (group tp (4), ranks 0-3)"``."""
    created = [new for rank in sorted(instance.calls) if (new := instance.call(rank).signature.new_group)]
    if created and len({new[1:3] for new in created}) == 1:
        return new_group_text(instance.operation, instance.sequence_id, created[0])
    if instance.p2p:
        source, destination, tag, index = instance.p2p
        operation = "recv" if "send" not in {c[-1].signature.operation for c in instance.calls.values()} else "send"
        message = collective_text(operation, index + 1)
        return f"{message} from rank {source} to rank {destination} (tag {tag}) of {group_of(instance.group)}"
    return f"{collective_text(instance.operation, instance.sequence_id)} of {group_of(instance.group)}"


def new_group_text(operation: str, number: int, new: NewGroup) -> str:
    """``"new_group number 2 (group tp (4), ranks 0-3)"``."""
    members = f", {ranks_text(new.ranks)}" if new.ranks else ""
    return f"{collective_text(operation, number)} (group {group_text(new.name, new.description)}{members})"


def waiting_text(ranks: Iterable[int], instance: Instance) -> str:
    """``"ranks 0, 2 wait in all_reduce number 5 of group dp (3)"``."""
    ranks = instance.with_counted(tuple(ranks))
    return f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {instance_text(instance)}"


def call_text(evidence: Evidence, call: Call) -> str:
    """``"all_reduce number 5 of group dp (3)"``, ``"recv from any source of group pp (4)"``."""
    text = call.signature.operation
    if call.signature.new_group is not None:
        return new_group_text(text, call.sequence_id, call.signature.new_group)
    if call.signature.destroys:
        pass  # a rank does so once
    elif call.stream != "p2p":
        text = collective_text(text, call.sequence_id)
    elif call.signature.peer is not None:
        text += f" {'to' if text == 'send' else 'from'} rank {call.signature.peer}"
    elif call.signature.any_source:
        text += " from any source"
    group = evidence.groups.get(call.group)
    return f"{text} of {group_of(group)}" if group is not None else text
