"""The words: one sentence a person can act on for each finding. Pure text, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otel_fr.match.crossed import Crossed
from otel_fr.match.endings import describe_ending
from otel_fr.match.instances import Instance
from otel_fr.match.mismatch import Mismatch
from otel_fr.match.model import Call, Ending, Evidence, Group

MAX_RANGES = 12
"""Ranges of ranks that a sentence names."""
MAX_STEPS = 6
"""Ranks of a circle of which a sentence says where they wait."""


def ranks_text(ranks: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``"ranks 0-2, 5"``; one: ``"rank 5"``; none: ``"no rank"``; many: the first, and how many."""
    items = sorted(set(ranks))
    if not items:
        return "no rank"
    parts: list[str] = []
    start = previous = items[0]
    for rank in [*items[1:], None]:
        if rank is not None and rank == previous + 1:
            previous = rank
            continue
        joint = "-" if previous > start + 1 else ", "
        parts.append(str(start) if start == previous else f"{start}{joint}{previous}")
        if rank is not None:
            start = previous = rank
    if len(parts) > MAX_RANGES + 1:
        parts[MAX_RANGES:] = [f"... ({len(items)} in all)"]
    return ("rank " if len(items) == 1 else "ranks ") + ", ".join(parts)


def group_text(group: Group) -> str:
    """``"group dp ('3')"``, ``"group '0'"``."""
    if group.description and group.description != "undefined":
        return f"group {group.description} ({group.name!r})"
    return f"group {group.name!r}"


def instance_text(instance: Instance) -> str:
    """``"all_reduce number 5 of group default_pg ('0')"``, ``"the send from rank 0 to rank 1 ..."``."""
    if instance.p2p:
        source, destination, tag, index = instance.p2p
        operation = "recv" if "send" not in {c[-1].signature.operation for c in instance.calls.values()} else "send"
        return (
            f"{operation} number {index + 1} from rank {source} to rank {destination}"
            f" (tag {tag}) in {group_text(instance.group)}"
        )
    return f"{instance.operation} number {instance.sequence_id} of {group_text(instance.group)}"


def verb(ranks: Iterable[int], one: str, many: str) -> str:
    return one if len(list(ranks)) == 1 else many


def waited_text(seconds: float | None) -> str:
    return f" for {seconds:.1f} s" if seconds is not None else ""


def where_text(evidence: Evidence, rank: int, last: Call | None) -> str:
    """What is known of a rank that has not joined: alive or how it ended, where, and its last collective."""
    info = evidence.ranks.get(rank)
    if info is None or info.ending is Ending.UNKNOWN:
        return f"rank {rank} has sent nothing and left no file (evidence, not proof)"
    text = f"rank {rank} {describe_ending(info)}"
    site = info.exception_site or info.site
    if info.python_blocked and info.ending is Ending.RUNNING:
        text += ", but its Python threads do not run (GIL held in C code, or the process is stopped)"
    elif info.python_blocked:
        text += " after its Python threads had stopped running (GIL held in C code, or the process was stopped)"
    if site:
        text += f" at {site}"
    if last is not None:
        number = "" if last.stream == "p2p" else f" number {last.sequence_id}"
        text += f"; its last call is {last.signature.operation}{number}"
    return text


def mismatch_text(mismatch: Mismatch, shift: str) -> str:
    """Who brought what, and whether it can be told who is wrong."""
    brought: dict[str, list[int]] = {}
    for rank, value in sorted(mismatch.values.items()):
        brought.setdefault(value, []).append(rank)
    parts = [
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} {value}"
        for value, ranks in sorted(brought.items(), key=lambda item: (-len(item[1]), item[1]))
    ]
    name = mismatch.field.replace("_", " ")
    text = (
        f"{name} {'differ' if 'sizes' in name else 'differs'} in {instance_text(mismatch.instance)}: {', '.join(parts)}"
    )
    if not mismatch.has_majority:
        return text + " (no majority: it cannot be told which rank is wrong)"
    if shift:
        text += f"; {ranks_text(mismatch.odd)} seems to have made {shift} than the others"
    return text


def holding_text(
    evidence: Evidence,
    instance: Instance,
    culprits: Iterable[int],
    waiting: tuple[int, ...],
    age: float | None,
    lasts: Mapping[int, Call],
) -> str:
    """``"rank 1 did not join X; ranks 0, 2 wait there for 4.5 s; rank 1 is alive at train.py:9 load; ..."``"""
    culprits = list(culprits)
    missing = [rank for rank in culprits if rank not in instance.calls]
    waiters = f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} there{waited_text(age)}" if waiting else ""
    if missing:
        head = f"{ranks_text(missing)} did not join {instance_text(instance)}"
    else:
        head = f"{ranks_text(culprits)} failed in {instance_text(instance)}"
    details = [where_text(evidence, rank, lasts.get(rank)) for rank in culprits[:4]]
    if len(culprits) > 4:
        details.append(f"and {len(culprits) - 4} more")
    if 2 * len(missing) > len(instance.members) and len(waiting) > 0 and len(missing) > 1:
        details.append(f"or {ranks_text(waiting)} made one call more than all of these")
    return "; ".join(part for part in [head, waiters, *details] if part)


def crossed_text(crossed: Crossed) -> str:
    """``"rank 0 waits in send ... to rank 2, which has no counterpart, while rank 1 waits in recv ... from rank 0"``"""
    astray, other = crossed.astray, crossed.other
    caller = min(astray.calls)
    text = f"rank {caller} waits in {instance_text(astray)}, which has no counterpart"
    text += f", while rank {min(other.calls)} waits in {instance_text(other)}, which would fit it"
    if crossed.tags_differ:
        return f"{text}: their tags differ, or the order of their calls does"
    members = [rank for rank in astray.members if rank != caller]
    wrong = "sends to" if astray.call(caller).signature.operation == "send" else "receives from"
    left_out = "recv" if wrong == "sends to" else "send"
    return f"{text}: rank {caller} {wrong} the wrong rank (or {ranks_text(members)} left out its {left_out})"


def one_more_text(caller: int, other: int, message: Instance, step: Instance) -> str:
    """A message that nobody owes: the other rank went on to ``step`` as in every step before."""
    text = f"rank {caller} waits in {instance_text(message)}, which has no counterpart: rank {other} went on to"
    text += f" {instance_text(step)} after as many messages as in each step before; rank {caller} made one more"
    return text + (f", or left {instance_text(step)} out" if caller in step.members else "")


def device_text(instance: Instance, culprits: list[int], ahead: tuple[int, int], waiting: list[int]) -> str:
    """``ahead``: a member that has completed more, and its last completed number."""
    text = (
        f"{ranks_text(culprits)} {verb(culprits, 'is', 'are')} stuck on the device: issued {instance_text(instance)}"
        f" and did not complete it, while rank {ahead[0]} has completed number {ahead[1]}"
    )
    return f"{text}; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} behind it" if waiting else text


def inverted_text(first: Instance, second: Instance, one: int, other: int) -> str:
    """Two ranks that issued two collectives in opposite orders."""
    return f"deadlock: rank {one} issued {instance_text(first)} before {instance_text(second)}, rank {other} after it"


def deadlock_text(
    steps: list[tuple[int, Instance, int]], odd: tuple[tuple[int, ...], Instance, Instance] | None
) -> str:
    """Say who waits for whom in a circle.

    Args:
        steps: (waiting rank, where it waits, the rank it waits for), in the order of the cycle.
        odd: ranks that went to the second instance without the first, against the order of most; None: no majority.
    """
    text = "deadlock: " + ", ".join(
        f"rank {rank} waits in {instance_text(instance)} for rank {blocker}"
        for rank, instance, blocker in steps[:MAX_STEPS]
    )
    if len(steps) > MAX_STEPS:
        text += f", and so on round to rank {steps[0][0]} ({len(steps)} ranks in all)"
    if odd is None:
        return text
    ranks, skipped, taken = odd
    return (
        f"{text}; against the order of most ranks, {ranks_text(ranks)} went to {instance_text(taken)} before"
        f" {instance_text(skipped)}"
    )
