"""NCCL's RAS answers as sentences, the same in incidents and in reports from files. No verdict rests on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from otel_fr.identity import decode_ranks
from otel_fr.match import Group
from otel_fr.presentation import count_text, group_text, ranks_text
from otel_fr.rank_report.ras import ABORTED, DEAD, ERROR, KINDS, SILENT, STARTED, ReportedCommunicator, ReportedFact

MAX_COUNTS = 8
"""Different numbers of calls in one sentence."""
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote process error",
}
"""``ncclResult_t`` (nccl.h) -> its meaning."""


def all_well(communicators: int) -> str:
    """The sentence if nothing is odd."""
    return f"{count_text(communicators, 'communicator')}: all ranks answered, and have started equally many calls"


def timeouts_text(count: int) -> str:
    """The sentence if processes did not answer RAS in time."""
    return f"some processes did not answer in time ({count_text(count, 'timeout')})"


def sentences(one: ReportedCommunicator, group: Group | None) -> Iterator[str]:
    """Yield a sentence for each odd thing.

    Args:
        group: the communicator's group, as `group_of` finds it: then ranks are named by their global numbers.
    """
    where = f"communicator {one.id} of {count_text(one.size, 'rank')}"
    if group is not None:
        where = f"group {group_text(group.name, group.description)}"
    facts = sorted((fact for fact in one.facts if fact.kind in KINDS), key=lambda fact: KINDS.index(fact.kind))
    for (kind, operation), same in groupby(facts, key=lambda fact: (fact.kind, fact.operation)):
        for text in _texts(kind, operation, list(same), group):
            yield f"{where}: {text}"


def _texts(kind: str, operation: str, facts: list[ReportedFact], group: Group | None) -> Iterator[str]:
    if kind == STARTED:
        counts = ", ".join(f"{fact.number} on {_named(fact, group)}" for fact in facts[:MAX_COUNTS])
        yield f"calls of {operation} started: {counts}"
        return
    for fact in facts:
        named = _named(fact, group)
        they = "it" if len(_numbers(fact)) + fact.more == 1 else "them"
        number = fact.number or 0
        yield {
            SILENT: f"{named} did not answer",
            DEAD: f"{named} did not answer, and NCCL considers {they} dead",
            ERROR: f"{named} with NCCL's error {number} ({_ERRORS.get(number, 'unknown')})",
            ABORTED: f"aborted on {named}",
        }[kind]


def _named(fact: ReportedFact, group: Group | None) -> str:
    ranks = _numbers(fact)
    if group is not None:
        ranks = [group.ranks[rank] for rank in ranks if 0 <= rank < len(group.ranks)]
    return ranks_text(ranks) + (f" and {fact.more} more" if fact.more else "")


def _numbers(fact: ReportedFact) -> list[int]:
    """Return the ranks of a fact; empty: its text is not a list of ranks."""
    try:
        return decode_ranks(fact.ranks)
    except ValueError:
        return []


def group_of(one: ReportedCommunicator, groups: Iterable[Group], pid_of: Mapping[int, int | None]) -> Group | None:
    """Return the only group of the same size whose ranks have the communicator's processes, rank by rank.

    Args:
        pid_of: global rank -> process id; None: unknown.
    """
    parts = [pair for pair in one.processes if len(pair) == 2 and 0 <= pair[0] < one.size]
    fitting = []
    for group in groups:
        if len(group.ranks) != one.size:
            continue
        pairs = [(pid_of.get(group.ranks[rank]), pid) for rank, pid in parts]
        known = [theirs == ours for ours, theirs in pairs if ours is not None]
        if known and all(known):
            fitting.append(group)
    return fitting[0] if len(fitting) == 1 else None
