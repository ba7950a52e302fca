"""Divides files that do not name their run, if several attempts or jobs share a folder or use neighbouring ones."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from otel_fr.dumps.columns import NONE
from otel_fr.dumps.model import Dump, Problem

_NUMBER = re.compile(r"\d+")
_SAME_MOMENT_NS = 60 * 1_000_000_000
"""Files whose newest calls are in the same interval of this length count as equally new."""

_Set = list[Dump]


def split(dumps: Sequence[Dump]) -> tuple[list[list[Dump]], list[Problem]]:
    """Divide files into runs, newest first. Each has at most one file per rank and is sorted by rank.

    Files whose paths differ only in the rank form a set. Sets without a rank in common count as one run, because each
    host may name its files in its own way. Sets with a rank in common show different moments and are never mixed. In
    different folders they are two runs. In one folder only the newest set is used, and a problem is returned for each
    file of the others.
    """
    left = sorted(_sets(dumps), key=_newest, reverse=True)
    runs: list[list[Dump]] = []
    problems: list[Problem] = []
    while left:
        chosen: dict[int, Dump] = {}
        later: list[_Set] = []
        for members in left:
            shared = [chosen[dump.rank] for dump in members if dump.rank in chosen]
            if not shared:
                chosen.update((dump.rank, dump) for dump in members)
            elif any(_folder(dump) == _folder(members[0]) for dump in shared):
                problems.extend(_unused(dump, chosen) for dump in members)
            else:
                later.append(members)
        runs.append([chosen[rank] for rank in sorted(chosen)])
        left = later
    return runs, problems


def _unused(dump: Dump, chosen: dict[int, Dump]) -> Problem:
    other = chosen.get(dump.rank)
    if other is not None:
        return replaced(dump, other)
    return Problem(dump.path, "not used: it is of an older set of files in this folder; select that set with --prefix")


def replaced(dump: Dump, other: Dump) -> Problem:
    """The problem of a file that is not used because the same rank has a better one."""
    return Problem(dump.path, f"not used: {other.path} is a newer or fuller file of rank {dump.rank}")


def _sets(dumps: Sequence[Dump]) -> list[_Set]:
    found: dict[tuple[str, str, int], _Set] = {}
    for dump in dumps:
        folder, name = os.path.split(dump.path)
        alike = _without_rank(name, dump.rank)
        where = folder if _NUMBER.search(name) else _NUMBER.sub("#", folder)
        # If a rank occurs twice ("trace_0", "trace_00"), there are two sets.
        turn = 0
        while any(other.rank == dump.rank for other in found.get((where, alike, turn), ())):
            turn += 1
        found.setdefault((where, alike, turn), []).append(dump)
    return list(found.values())


def _without_rank(name: str, rank: int) -> str:
    """Replace the last number in the name that equals the rank by ``#``."""
    for number in reversed(list(_NUMBER.finditer(name))):
        if int(number[0]) == rank:
            return f"{name[: number.start()]}#{name[number.end() :]}"
    return name


def _newest(members: _Set) -> tuple[int, int, int, str]:
    """Sort key of sets: the moment that they show, then how much they contain."""
    moment = max(_moment(dump) for dump in members) // _SAME_MOMENT_NS
    known = sum(len(dump.entries.call_sites) for dump in members)
    return moment, sum(len(dump.entries) for dump in members), known, members[0].path


def _moment(dump: Dump) -> int:
    created = dump.entries.created
    newest = NONE if created is None else int(created.max())
    return newest if newest > 0 else dump.modified_ns


def _folder(dump: Dump) -> str:
    return os.path.dirname(dump.path)
