"""Sentences on how ranks ended, on what was overdue, and on ranks that are blocked on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from otel_fr.match.case import Case
from otel_fr.match.facts.instances import Instance
from otel_fr.match.facts.machines import Machines
from otel_fr.match.model import Ending, Evidence, Overdue, Rank
from otel_fr.match.texts.calls import instance_text
from otel_fr.match.texts.rank_texts import describe_ending, thread_texts, where_texts
from otel_fr.match.texts.sentences import MAX_ENDINGS
from otel_fr.presentation import duration_text, message_text, ranks_text, verb


def host_text(evidence: Evidence, instance: Instance, culprits: Iterable[int]) -> str:
    """Why ranks are known to be blocked on the host, or to have been until they ended."""
    ranks = list(culprits)
    ended = all(evidence.ranks[rank].ending is not Ending.RUNNING for rank in ranks)
    they = verb(ranks, "it", "they")
    text = f"{they} {verb(ranks, 'was', 'were') if ended else verb(ranks, 'is', 'are')} not blocked in a "
    return text + (f"collective: all {they} enqueued in this group completed" if instance.p2p is None else "call")


def overdue_value(item: Overdue) -> str:
    """``"section dataloading, limit 30.0 s"``, ``"heartbeat, limit 60.0 s"``."""
    name = f" {message_text(item.name)}" if item.name else ""
    return f"{item.kind}{name}, limit {duration_text(item.limit)}"


def within_text(rank: int, item: Overdue) -> str:
    """``"rank 0 has been in section save for 22.0 s, and may be for 300.0 s"``."""
    seconds, limit = duration_text(item.age), duration_text(item.limit)
    return f"rank {rank} has been in section {message_text(item.name)} for {seconds}, and may be for {limit}"


def overdue_text(overdue: Mapping[int, Overdue], ranks: Mapping[int, Rank], name: str) -> str:
    """``"rank 1 has been in section dataloading for 42.0 s, longer than its limit of 30.0 s"``.

    Args:
        overdue: rank -> what is overdue, the same section for all. name: of these ranks.
    """
    who, first = list(overdue), overdue[min(overdue)]
    ended = all(ranks[rank].ending is not Ending.RUNNING for rank in who)
    had = "had" if ended else verb(who, "has", "have")
    ages = [item.age for item in overdue.values()]
    seconds = ("up to " if len(who) > 1 else "") + duration_text(max(ages))
    if first.kind == "heartbeat":
        text = f"{name} {had} sent no heartbeat for {seconds}"
    elif first.kind == "outside":
        text = f"{name} {had} been outside all sections for {seconds}"
    else:
        text = f"{name} {had} been in section {message_text(first.name)} for {seconds}"
    text += f", longer than the limit of {duration_text(first.limit)}"
    if any(ranks[rank].ended_by_monitor for rank in who):
        text += f", when {verb(who, 'its monitor', 'their monitors')} ended {verb(who, 'it', 'them')}"
    return text


def endings_texts(ranks: list[int], evidence: Evidence, machines: Machines) -> list[str]:
    """How ranks ended, those that ended alike together, the first `MAX_ENDINGS` ways; and details."""
    alike: dict[str, list[int]] = {}
    for rank in ranks:
        info = evidence.ranks[rank]
        alike.setdefault(f"{describe_ending(info)}{_raised_at(info)}", []).append(rank)
    shown = list(alike.values())[:MAX_ENDINGS]
    parts = []
    for name, own in zip(machines.each(shown), shown, strict=True):
        info = evidence.ranks[own[0]]
        parts.append(f"{name} {describe_ending(info, several=len(own) > 1)}{_raised_at(info)}")
    more = len(ranks) - sum(map(len, shown))
    if more:
        parts.append(f"and {more} more")
    detailed = [rank for own in shown for rank in own][:MAX_ENDINGS]
    details = (f"rank {rank}: {text}" for rank in detailed for text in thread_texts(evidence.ranks[rank]))
    return ["; ".join(parts), *details]


def _raised_at(info: Rank) -> str:
    return f" at {info.exception_site}" if info.exception_site and info.ending is Ending.RAISED else ""


def aborted_text(ranks: list[int], evidence: Evidence) -> str:
    """``"ranks 0, 2 were aborted by signal 6 (SIGABRT) while they waited"``; of ranks that raised, the first text."""
    killed = [rank for rank in ranks if evidence.ranks[rank].ending is Ending.KILLED]
    raised = [rank for rank in ranks if rank not in killed]
    parts = []
    if killed:
        who = f"{ranks_text(killed)} {verb(killed, 'was', 'were')}"
        parts.append(f"{who} aborted by signal 6 (SIGABRT) while {verb(killed, 'it', 'they')} waited")
    if raised:
        others = "" if len(raised) == 1 else f" (likewise {ranks_text(raised[1:])})"
        parts.append(f"while it waited, rank {raised[0]} {describe_ending(evidence.ranks[raised[0]])}{others}")
    return "; ".join(parts)


def unexplained_texts(case: Case, instance: Instance, failed: list[int]) -> list[str]:
    """A call that failed on ranks which ended for that."""
    endings, *details = endings_texts(failed, case.evidence, case.machines)
    return [f"{instance_text(instance)} failed; the evidence does not show the cause: {endings}", *details]


def overrun_texts(case: Case, alike: Mapping[int, Overdue]) -> list[str]:
    """Ranks with the same overdue section or heartbeat, and where these are."""
    shown = list(alike)[:MAX_ENDINGS]
    wheres = [where_texts(case, rank) for rank in shown]
    summary = f"{overdue_text(alike, case.evidence.ranks, case.machines.named(alike))}; {wheres[0].pop(0)}"
    return [summary, *wheres[0], *("; ".join(texts) for texts in wheres[1:])]
