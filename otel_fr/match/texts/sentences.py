"""The sentence of each finding, on which a person can act. Text only, no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from otel_fr.match.case import Case
from otel_fr.match.facts.instances import Instance
from otel_fr.match.facts.machines import Machines, are_silent
from otel_fr.match.facts.mismatch import Mismatch
from otel_fr.match.facts.ranks import may_run
from otel_fr.match.graph.misdirected import MisdirectedMessage
from otel_fr.match.graph.nodes import Node, waited
from otel_fr.match.model import Call, CallState, Ending, Evidence
from otel_fr.match.texts.calls import instance_text, waiting_text
from otel_fr.match.texts.ranks import (
    MAX_ENDINGS,
    describe_ending,
    link_texts,
    raised_texts,
    silence_text,
    starved_text,
    unreached_texts,
    where_texts,
)
from otel_fr.operations import other_half
from otel_fr.presentation import (
    duration_text,
    message_text,
    ranks_by_text,
    ranks_text,
    verb,
)

MAX_STEPS = 6
"""Steps of a cycle that a sentence names."""
AT_ONCE = 0.1
"""Seconds up to which a call is said to have failed at once."""


def mismatch_text(mismatch: Mismatch, shift: str, waits: str, machines: Machines) -> str:
    """State the differing values with their ranks, which rank is wrong if a majority shows it, and who waits."""
    ranks_of = ranks_by_text(sorted(mismatch.values.items()))
    ordered = sorted(ranks_of.items(), key=lambda item: (-len(item[1]), item[1]))
    accused = [ranks for _, ranks in ordered if set(ranks) <= set(mismatch.differing)]
    names = {ranks[0]: name for ranks, name in zip(accused, machines.each(accused), strict=True)}
    parts = [
        f"{names.get(ranks[0]) or ranks_text(ranks)} {verb(ranks, 'has', 'have')} {value}" for value, ranks in ordered
    ]
    name = mismatch.field.replace("_", " ")
    text = (
        f"{name} {'differ' if 'sizes' in name else 'differs'} in {instance_text(mismatch.instance)}: {', '.join(parts)}"
    )
    if not mismatch.has_majority:
        text += " (no majority shows which rank is wrong)"
    elif shift:
        text += f"; {ranks_text(mismatch.differing)} appears to have made {shift} than the others"
    return f"{text}; {waits}" if waits else text


def waits_text(evidence: Evidence, instance: Instance, waiting: Sequence[int], age: float | None) -> str:
    """Say who waits in an instance: ``"ranks 0, 2 wait"``; once none waits, ``"ranks 0, 2 waited for 600.0 s"``.

    If it failed before its timeout: ``"the call failed at once on ranks 0, 2"``. The wait comes last in the text, for
    `otel_fr.presentation.with_wait`.
    """
    calls = [instance.call(rank) for rank in waiting]
    waiting = instance.with_counted(tuple(waiting))
    if any(call.state is not CallState.FAILED or call.error == "timeout" for call in calls):
        if any(call.state is not CallState.FAILED and may_run(evidence, call.rank) for call in calls):
            return f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}"
        return f"{ranks_text(waiting)} waited" + ("" if age is None else f" for {duration_text(age)}")
    if age is not None and age < AT_ONCE:
        return f"the call failed at once on {ranks_text(waiting)}"
    return f"the call failed on {ranks_text(waiting)}" + ("" if age is None else f" after {duration_text(age)}")


def holding_texts(case: Case, node: Node, culprits: Sequence[int]) -> list[str]:
    """``"rank 1 (gpu-17) did not join X; rank 1 is at train.py:9 load, in no collective; ranks 0, 2 wait"``.

    Details follow.
    """
    evidence, instance, machines = case.evidence, node.instance, case.machines
    # If a machine is lost, or ranks ended together, ranks that are no members are named, too.
    members = set(instance.members)
    missing = [rank for rank in culprits if rank in members and rank not in instance.calls]
    blocking = missing or [rank for rank in culprits if rank in members]
    did_not = "did not join" if instance.p2p is None else "did not make the other half of"
    did = f"{did_not if missing else 'failed in'} {instance_text(instance)}"
    if are_silent(evidence, culprits):
        they = verb(culprits, "it", "they") if len(missing) == len(culprits) else ranks_text(blocking)
        parts = [silence_text(case, culprits), f"{they} {did}"]
    elif members.issuperset(culprits):
        parts = [f"{machines.named(blocking)} {did}"]
    else:
        how = describe_ending(evidence.ranks[culprits[0]], several=True)
        parts = [f"{machines.named(culprits)} {how}", f"{ranks_text(blocking)} {did}"]
    wheres = [where_texts(case, rank, instance) for rank in culprits[:MAX_ENDINGS]]
    if len(culprits) == 1 and not are_silent(evidence, culprits):
        parts.append(wheres[0].pop(0))
    elif site := _common_site(evidence, culprits):
        parts.append(f"all are at {site}")
    if node.waiting:
        parts.append(waits_text(evidence, instance, node.waiting, node.age))
    details = ["; ".join(texts) for texts in wheres] if len(wheres) > 1 else wheres[0]
    if len(culprits) > MAX_ENDINGS:
        details.append(f"and {len(culprits) - MAX_ENDINGS} more")
    if 2 * len(missing) > len(instance.members) and node.waiting and len(missing) > 1:
        details.append(f"it is also possible that {ranks_text(node.waiting)} made one extra call")
    return ["; ".join(parts), *details]


def starved_texts(case: Case, node: Node, culprits: Sequence[int]) -> list[str]:
    """``"rank 1 (gpu-17) has not joined X yet: its process has waited 4.8 of the last 5.0 s for a processor; ..."``.

    Details follow.
    """
    instance = node.instance
    did_not = "joined" if instance.p2p is None else "made the other half of"
    text = (
        f"{case.machines.named(culprits)} {verb(culprits, 'has', 'have')} not {did_not} {instance_text(instance)} yet"
    )
    why = starved_text([case.evidence.ranks[rank] for rank in culprits])
    wheres = [where_texts(case, rank, instance) for rank in culprits[:MAX_ENDINGS]]
    waits = waits_text(case.evidence, instance, node.waiting, node.age)
    return [f"{text}: {why}; {waits}", *("; ".join(text for text in texts if text != why) for texts in wheres)]


def _common_site(evidence: Evidence, ranks: Iterable[int]) -> str:
    """Where all these ranks run, if that is one place; else ""."""
    infos = [evidence.ranks.get(rank) for rank in ranks]
    sites = {"" if info is None or info.ending is not Ending.RUNNING else info.site for info in infos}
    return sites.pop() if len(sites) == 1 else ""


def untold_text(instance: Instance, waiting: Iterable[int], unheard: Iterable[int]) -> str:
    """``"rank 0 waits in X; ranks 1, 2 sent no report and left no flight-recorder file, ..."``"""
    return (
        f"{waiting_text(waiting, instance)}; {ranks_text(unheard)} sent no report and left no flight-recorder file,"
        " so it is not known which rank did not join"
    )


def unrecorded_text(case: Case, instance: Instance, waiting: Iterable[int], ranks: Iterable[int]) -> str:
    """``"rank 0 waits in X; it is not known whether rank 1 joined it, because ..."``"""
    ranks, known = list(ranks), case.evidence.ranks
    dropped = [rank for rank in ranks if known[rank].is_unheard]
    why = [f"the collector has no room for {ranks_text(dropped)}"] if dropped else []
    if len(dropped) < len(ranks):
        created = ", or does not record there how groups are created" if instance.stream == "group" else ""
        why.append(f"otel-fr could not record some calls there{created}")
    joined = f"it is not known whether {ranks_text(ranks)} joined it"
    return f"{waiting_text(waiting, instance)}; {joined}, because {', and '.join(why)}"


def only_unheard_text(waiting: Iterable[int]) -> str:
    """Say why a rank without evidence is named."""
    waiting = list(waiting)
    return f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} for nobody else"


def absent_text(case: Case, instance: Instance, absent: list[int]) -> str:
    """``"rank 1 had not joined it either; rank 1 is at train.py:9 load, in no collective; ..."``"""
    text = f"{case.machines.named(absent)} had not joined it either"
    return "; ".join([text, *where_texts(case, absent[0], instance)])


def unmatched_texts(case: Case, instance: Instance, blocker: int, *, has_passed: bool = True) -> list[str]:
    """Describe a message without its other half, with details. ``has_passed``: its rank continued, or ended."""
    here = next(iter(instance.calls.values()))[-1]
    made = here.signature.operation
    wanted = other_half(made)
    where, *details = where_texts(case, blocker, instance)
    who = case.machines.named([blocker])
    if blocker in case.unheard:
        failing = f"it is not known whether {who} called the matching {wanted}"
    else:
        doubt = f" (or rank {here.rank} made one {made} too many)" if has_passed else ""
        failing = f"{who} did not call the matching {wanted}{doubt}"
    return [f"{failing}: rank {here.rank} waits in {instance_text(instance)}; {where}", *details]


def joined_texts(case: Case, node: Node, lost: Sequence[int] = ()) -> list[str]:
    """``"all members joined X with matching arguments, but it has not completed"``, or that it failed, and details.

    Args:
        lost: members on machines that are lost.
    """
    failed = [call for rank in node.instance.members if (call := node.instance.call(rank)).state is CallState.FAILED]
    how = "it has not completed"
    if failed:
        seconds = max((call.duration for call in failed if call.duration is not None), default=None)
        how = "it timed out" if any(call.error == "timeout" for call in failed) else "it failed"
        how += "" if seconds is None else f" after {duration_text(seconds)}"
    text = f"all members joined {instance_text(node.instance)} with matching arguments, but {how}"
    details: list[str] = []
    if lost:
        text = f"{silence_text(case, lost)}; {text}"
    else:
        hosts, details = unreached_texts(case.evidence, node.waiting)
        text = f"{hosts}; {text}" if hosts else text
        details += link_texts(case.evidence)
    return [text, *details, *(raised_texts(case.evidence, node.waiting) if failed else [])]


def stopped_texts(case: Case, instance: Instance, culprits: Sequence[int], waiting: Sequence[int]) -> list[str]:
    """``"rank 1 joined X and then stopped running: it is stopped by a signal (SIGSTOP); ranks 0, 2 wait"``."""
    info = case.evidence.ranks[culprits[0]]
    is_over = info.ending is not Ending.RUNNING
    was = verb(culprits, "was", "were") if is_over else verb(culprits, "is", "are")
    text = (
        f"{case.machines.named(culprits)} joined {instance_text(instance)} and then stopped running:"
        f" {verb(culprits, 'it', 'they')} {was} {message_text(info.doing)}"
    )
    details = [f"rank {rank} {describe_ending(case.evidence.ranks[rank])}" for rank in culprits[:MAX_ENDINGS]]
    if waiting:
        text += f"; {waits_text(case.evidence, instance, waiting, waited(instance, waiting))}"
    return [text, *(details if is_over else [])]


def store_texts(case: Case, ranks: list[int], others: list[int]) -> list[str]:
    """Name the ranks that gave up waiting for the others at the job's store, and say where these are."""
    summary = (
        f"{ranks_text(ranks)} gave up waiting for other ranks at the job's store:"
        f" rank {ranks[0]} {describe_ending(case.evidence.ranks[ranks[0]])}"
    )
    if others:
        summary += f"; absent: {case.machines.named(others)}"
    return [summary, *("; ".join(where_texts(case, rank)) for rank in others[:MAX_ENDINGS])]


def misdirected_text(misdirected_message: MisdirectedMessage, machines: Machines) -> str:
    """``"rank 0 waits in send ... to rank 2, which has no counterpart, while rank 1 waits in recv ... from rank 0"``"""
    astray, other = misdirected_message.astray, misdirected_message.other
    caller = min(astray.calls)
    text = f"{machines.named([caller])} waits in {instance_text(astray)}, which has no counterpart"
    text += f", while rank {min(other.calls)} waits in {instance_text(other)}, which would match it"
    if len(misdirected_message.culprits) > 1:
        return f"{text}: their tags differ, or they call in a different order"
    members = [rank for rank in astray.members if rank != caller]
    made = astray.call(caller).signature.operation
    wrong = f"{'sends to' if made == 'send' else 'receives from'} the wrong rank"
    if misdirected_message.tags_differ:
        wrong = "names the wrong tag, which it has not used before"
    return f"{text}: rank {caller} {wrong} (or {ranks_text(members)} left out its {other_half(made)})"


def unseen_stall_text(last: Instance, wanted: Instance, waiting: Iterable[int]) -> str:
    """Describe a collective that all joined, whose end is unknown, and a later one that some have not joined."""
    return (
        f"all members joined {instance_text(last)}, and none has enqueued another call since; the backend does not"
        f" show whether it completed; {waiting_text(waiting, wanted)}"
    )


def many_unseen_text(instance: Instance, waiting: Iterable[int], missing: Iterable[int]) -> str:
    """Say that most members are missing from a collective, and that the backend does not show where they wait."""
    return (
        f"{waiting_text(waiting, instance)}; {ranks_text(missing)} did not join it: they may"
        " wait in an earlier call, because the backend does not show when calls end"
    )


def inverted_text(
    first: Instance, second: Instance, one: int, other: int, machines: Machines, culprits: tuple[int, ...] = ()
) -> str:
    """Describe two ranks that enqueued two collectives in opposite orders. ``culprits``: one, if it is out of step."""
    return (
        f"{machines.named([one, other])} enqueued two collectives in opposite orders: rank {one} enqueued"
        f" {instance_text(first)} before {instance_text(second)}, rank {other} after it{_unlike_text(culprits)}"
    )


def _unlike_text(culprits: tuple[int, ...]) -> str:
    if not culprits:
        return ""
    return f"; unlike the other ranks, {ranks_text(culprits)} left out a call, made one too many, or one too early"


def deadlock_text(
    steps: list[tuple[int, Instance, int]],
    minority: tuple[tuple[int, ...], Instance, Instance] | None,
    machines: Machines,
    culprits: tuple[int, ...],
) -> str:
    """Say which rank waits for which in a cycle.

    Args:
        steps: (waiting rank, where it waits, the rank it waits for), in the order of the cycle.
        minority: ranks that went to the second instance without the first, unlike most; None: no majority.
        culprits: ranks that are out of step, if it is unknown where; else ().
    """
    shown = steps[:MAX_STEPS]
    names = machines.each([[rank] for rank, _, _ in shown]) if minority is None else [f"rank {s[0]}" for s in shown]
    text = "ranks wait for each other: " + ", ".join(
        f"{name} waits in {instance_text(instance)} for rank {blocker}"
        for name, (_, instance, blocker) in zip(names, shown, strict=True)
    )
    if len(steps) > MAX_STEPS:
        text += f", and so on back to rank {steps[0][0]} ({len(steps)} ranks in all)"
    if minority is None:
        return text + _unlike_text(culprits)
    ranks, skipped, taken = minority
    return (
        f"{text}; unlike most ranks, {machines.named(ranks)} called {instance_text(taken)} before"
        f" {instance_text(skipped)} (or left it out)"
    )


def straggler_text(instance: Instance, late: list[Call], machines: Machines) -> str:
    """Say which ranks joined after the others had timed out, and how long each was busy elsewhere."""
    gaps = ", ".join(f"rank {c.rank} called it {duration_text(c.gap or 0.0)} after its previous call" for c in late)
    who = machines.named(call.rank for call in late)
    return f"{who} joined {instance_text(instance)} after the others had timed out: {gaps}"


def downstream_text(instance: Instance, waiting: Iterable[int], missing: list[int]) -> str:
    """Describe a consequence: who waits where because of a fault elsewhere, and for whom."""
    text = waiting_text(waiting, instance)
    return text + (f" for {ranks_text(missing)}" if missing else "")


# Ranks that are out of step: they left out a call, or made one too many.


def out_of_step_text(ranks: tuple[int, ...], skipped: Instance, taken: Instance, or_else: tuple[int, ...]) -> str:
    """Say what ranks did instead of joining ``skipped``, unlike the others. ``or_else``: other possible culprits."""
    they = verb(ranks, "it", "they")
    text = "" if or_else else "unlike the other ranks, "  # with two sides, neither is the exception
    text += f"{ranks_text(ranks)} called {instance_text(taken)} without it: {they}"
    if len(taken.members) < len(skipped.members):
        text += " made one call too many, or left this one out"
    else:
        text += " left out a call, or made this one too early"
    return text + (f" (or {ranks_text(or_else)} made too many calls)" if or_else else "")


def one_call_more_text(
    ranks: Sequence[int], others: Sequence[int], instance: Instance, machines: Machines, *, ended: bool, left: bool
) -> str:
    """Say that ranks wait in a collective that the other members left out.

    Args:
        ended: the other members have ended without an error.
        left: the other members have destroyed the group.
    """
    more, fewer = verb(ranks, "it", "they"), verb(others, "it", "they")
    how = f"{verb(others, 'does', 'do')} not call it"
    if ended:
        how = f"{verb(others, 'has', 'have')} ended without an error"
    elif left:
        how = f"{verb(others, 'has', 'have')} destroyed the group"
    return (
        f"{machines.named(ranks)} {verb(ranks, 'waits', 'wait')} in {instance_text(instance)}, but {ranks_text(others)}"
        f" {how}: unlike the other ranks, {more} made one call too many (or {fewer} left this one out)"
    )


def out_of_step_beside_text(
    ranks: Sequence[int], waiting: tuple[int, ...], others: Sequence[int], instance: Instance, machines: Machines
) -> str:
    """Say that ranks that are out of step wait in a collective together with ranks that are not."""
    return (
        f"{waiting_text(waiting, instance)}, which {ranks_text(others)}"
        f" {verb(others, 'has', 'have')} not called: unlike the other ranks, {machines.named(ranks)} left out a call"
        " before it, or made one too many"
    )


def one_more_text(caller: int, other: int, message: Instance, step: Instance, machines: Machines) -> str:
    """Describe an extra message: the other rank went to ``step`` after as many messages as in every earlier step."""
    text = f"{machines.named([caller])} waits in {instance_text(message)}, which has no counterpart:"
    text += f" rank {other} went on to"
    text += f" {instance_text(step)} after as many messages as in each earlier step; rank {caller} made one more"
    return text + (f", or skipped {instance_text(step)}" if caller in step.members else "")


def one_message_more_text(caller: int, other: int, message: Instance, step: Instance | None, machines: Machines) -> str:
    """Describe an extra message by a rank out of step. ``step``: what it may have left out before instead."""
    made = message.call(caller).signature.operation
    text = f"{machines.named([caller])} waits in {instance_text(message)}, which has no counterpart:"
    text += " unlike the other ranks,"
    text += f" rank {caller} made one {made} too many"
    if step is not None and caller in step.members:
        return f"{text}, or skipped {instance_text(step)}"
    return f"{text} (or rank {other} left out its {other_half(made)})"
