"""Finds the waits of a run that have not ended, from the evidence of its latest judgement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_fr.match import UNENDED, WAIT_SHARE
from otel_fr_collector.jobs.calls import RankCall
from otel_fr_collector.jobs.run import Run
from otel_fr_collector.jobs.snapshot import Snapshot


class OpenWait(NamedTuple):
    """A collective that some members of its group have not made. Times in seconds.

    ``waited``: by rank that waits in it. ``absent``: members that have not made it and wait in no other call.
    """

    group: str
    sequence: int
    waited: dict[int, float]
    absent: list[int]
    members: int


def find(taken: Snapshot) -> list[OpenWait]:
    """The collectives in which half of a group has waited for about the stall time. A pure function.

    Of the calls in which a rank waits, only the longest counts.
    """
    longest: dict[int, tuple[float, RankCall]] = {}
    for call in taken.calls:
        if call.state not in UNENDED or call.enqueued_at is None:
            continue
        age = taken.until.get(call.rank, taken.moment) - call.enqueued_at
        if age >= WAIT_SHARE * taken.stall and (call.rank not in longest or longest[call.rank][0] < age):
            longest[call.rank] = age, call
    by_instance: dict[tuple[str, int], dict[int, float]] = {}
    for rank, (age, call) in longest.items():
        if call.stream == "collective":
            by_instance.setdefault((call.group, call.sequence_id), {})[rank] = age
    found = []
    for (name, sequence), waited in by_instance.items():
        group = taken.groups.get(name)
        if group is None:
            continue
        waited.update(_counted(taken, group.ranks, name, sequence))
        if 2 * len(waited) < len(group.ranks):
            continue
        infos = {rank: taken.ranks.get(rank) for rank in group.ranks}
        missing = {rank: one for rank, one in infos.items() if one is None or not one.has_enqueued(name, sequence)}
        if missing:
            lone = [rank for rank, one in missing.items() if one is None or one.unlisted is None]
            absent = [rank for rank in lone if rank not in longest]
            found.append(OpenWait(name, sequence, waited, absent, len(group.ranks)))
    return found


def _counted(taken: Snapshot, members: Iterable[int], group: str, sequence: int) -> Iterator[tuple[int, float]]:
    """Members whose counts show that they wait in the collective, and for how many seconds."""
    for rank in members:
        info = taken.ranks.get(rank)
        if info is None or info.unlisted is None or info.unlisted < WAIT_SHARE * taken.stall:
            continue
        if info.waits_by_counts(group, sequence):
            yield rank, info.unlisted


def count(run: Run, waits: list[OpenWait], now: float) -> None:
    """Count the waits in the run's groups."""
    for one in waits:
        group = run.groups.get(one.group)
        if group is not None:
            group.waits.add_open(one.sequence, one.waited, one.absent, one.members, now)
