"""Sentences on ranks that are out of step: they left out a call, or made one too many."""

from __future__ import annotations

from collections.abc import Sequence

from otel_fr.match.facts.instances import Instance
from otel_fr.match.facts.machines import Machines
from otel_fr.match.texts.calls import instance_text, waiting_text
from otel_fr.presentation import ranks_text, verb


def out_of_step_text(ranks: tuple[int, ...], skipped: Instance, taken: Instance, or_else: tuple[int, ...]) -> str:
    """What ranks did instead of joining ``skipped``, unlike the others; ``or_else``: ranks that may have done it."""
    they = verb(ranks, "it", "they")
    text = "" if or_else else "unlike the other ranks, "  # with two sides, neither is the exception
    text += f"{ranks_text(ranks)} called {instance_text(taken)} without it: {they}"
    if len(taken.members) < len(skipped.members):
        text += " made one call too many, or left this one out"
    else:
        text += " left out a call, or made this one too early"
    return text + (f" (or {ranks_text(or_else)} made too many calls)" if or_else else "")


def one_call_more_text(
    ranks: Sequence[int], others: Sequence[int], instance: Instance, machines: Machines, *, ended: bool
) -> str:
    """Ranks wait in a collective that the other members left out. ``ended``: these have ended without an error."""
    more, fewer = verb(ranks, "it", "they"), verb(others, "it", "they")
    how = (
        f"{verb(others, 'has', 'have')} ended without an error"
        if ended
        else f"{verb(others, 'does', 'do')} not call it"
    )
    return (
        f"{machines.named(ranks)} {verb(ranks, 'waits', 'wait')} in {instance_text(instance)}, but {ranks_text(others)}"
        f" {how}: unlike the other ranks, {more} made one call too many (or {fewer} left this one out)"
    )


def out_of_step_beside_text(
    ranks: Sequence[int], waiting: tuple[int, ...], others: Sequence[int], instance: Instance, machines: Machines
) -> str:
    """Ranks that are out of step wait in a collective together with ranks that are not."""
    return (
        f"{waiting_text(waiting, instance)}, which {ranks_text(others)}"
        f" {verb(others, 'has', 'have')} not called: unlike the other ranks, {machines.named(ranks)} left out a call"
        " before it, or made one too many"
    )


def one_more_text(caller: int, other: int, message: Instance, step: Instance, machines: Machines) -> str:
    """An extra message: the other rank went on to ``step`` after as many messages as in every earlier step."""
    text = f"{machines.named([caller])} waits in {instance_text(message)}, which has no counterpart:"
    text += f" rank {other} went on to"
    text += f" {instance_text(step)} after as many messages as in each earlier step; rank {caller} made one more"
    return text + (f", or skipped {instance_text(step)}" if caller in step.members else "")


def one_message_more_text(caller: int, other: int, message: Instance, step: Instance | None, machines: Machines) -> str:
    """An extra message, made by a rank that is out of step; ``step``: what it may have left out before instead."""
    made = message.call(caller).signature.operation
    text = f"{machines.named([caller])} waits in {instance_text(message)}, which has no counterpart:"
    text += " unlike the other ranks,"
    text += f" rank {caller} made one {made} too many"
    if step is not None and caller in step.members:
        return f"{text}, or skipped {instance_text(step)}"
    return f"{text} (or rank {other} left out its {'recv' if made == 'send' else 'send'})"
