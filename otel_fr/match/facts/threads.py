"""Ranks several of whose threads are in calls of one process group: the order of these calls is left to chance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from otel_fr.match.model import Call, CallState


def sharing(calls: Iterable[Call]) -> dict[str, dict[tuple[str, ...], list[int]]]:
    """By group id and names of the threads, the ranks that have collectives of several threads under way in it.

    A thread without a name of its own counts as the main thread (`Call.thread`).
    """
    calls = [call for call in calls if call.state is not CallState.COMPLETED and call.stream == "collective"]
    groups = {call.group for call in calls if call.thread}
    threads: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for call in calls:
        if call.group in groups and not call.signature.destroys:
            threads[call.group, call.rank].add(call.thread)
    found: dict[str, dict[tuple[str, ...], list[int]]] = {}
    for (group, rank), names in sorted(threads.items()):
        if len(names) > 1:
            found.setdefault(group, {}).setdefault(tuple(sorted(names)), []).append(rank)
    return found
