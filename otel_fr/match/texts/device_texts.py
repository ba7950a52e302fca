"""The sentences of findings about devices. Text only, no decisions."""

from __future__ import annotations

from collections.abc import Iterable

from otel_fr.match.case import Case
from otel_fr.match.facts.instances import Instance
from otel_fr.match.facts.machines import Machines
from otel_fr.match.graph.movement import is_queued
from otel_fr.match.model import Group
from otel_fr.match.texts.calls import call_text, group_of, instance_text
from otel_fr.match.texts.ranks import MAX_ENDINGS
from otel_fr.presentation import count_text, message_text, ranks_text, verb


def device_texts(
    instance: Instance,
    culprits: list[int],
    ahead: tuple[int, int],
    waiting: list[int],
    others: list[Group],
    machines: Machines,
    halted: str,
) -> list[str]:
    """Say which call ranks enqueued and do not complete, with details.

    Args:
        halted: what the kernel says about their processes if no thread of them runs; "": they run.
        ahead: a member that has completed more, and its last completed number.
        others: further groups in which members completed calls that the culprits did not.
    """
    text = (
        f"{machines.named(culprits)} {verb(culprits, 'is', 'are')} {message_text(halted) or 'blocked on the device'}:"
        f" {verb(culprits, 'it', 'they')} enqueued {instance_text(instance)} and did not complete it,"
        f" while rank {ahead[0]} has completed {'its half' if instance.p2p else f'number {ahead[1]}'}"
    )
    said = [f"{text}; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}" if waiting else text]
    if others:
        more = count_text(len(others) - 1, "more group")
        said.append(f"the same shows in {group_of(others[0])}" + (f" and {more}" if len(others) > 1 else ""))
    return said


def not_begun_text(instance: Instance, culprits: list[int], waiting: list[int], machines: Machines) -> str:
    """Say which ranks' devices have not begun a call that the devices of others have begun."""
    return (
        f"{machines.named(culprits)} {verb(culprits, 'is', 'are')} blocked on the device:"
        f" {verb(culprits, 'it', 'they')} enqueued {instance_text(instance)}, but"
        f" {verb(culprits, 'its device has not begun it and is', 'their devices have not begun it and are')} in no"
        f" other collective; the {verb(waiting, 'device', 'devices')} of {ranks_text(waiting)}"
        f" {verb(waiting, 'waits', 'wait')} in it"
    )


def sync_texts(case: Case, ranks: Iterable[int]) -> list[str]:
    """``"rank 3 waits for its device (.item()), which has not begun all_reduce number 7 of group tp (1)"``.

    Only about the first of these ranks whose threads wait for their devices.
    """
    found: list[str] = []
    for rank in ranks:
        what = case.syncs.of(rank)
        if what and len(found) < MAX_ENDINGS:
            queued = [call for call in case.by_rank.get(rank, ()) if is_queued(call)]
            first = min(queued, key=lambda call: call.record, default=None)
            text = f"rank {rank} waits for its device ({message_text(what)})"
            found.append(text if first is None else f"{text}, which has not begun {call_text(case.evidence, first)}")
    return found
