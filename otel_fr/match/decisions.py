"""The first decision in which a culprit differed from its peers: evidence beside a fault, never one by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from otel_fr.match.model import Decision, Rank
from otel_fr.presentation import ranks_text

MAX_CULPRITS = 8
"""Culprits of one finding whose decisions are compared: more have not gone astray one by one."""
MAX_PEERS = 64
"""Peers that a culprit is compared with, so that the work is bounded; all ranks take the same decisions."""


class Divergence(NamedTuple):
    """Where a rank first decided otherwise than its peers, which all decided alike. ``step``: its own."""

    name: str
    value: str
    others: str
    step: int | None


def texts(culprits: Sequence[int], members: Iterable[int], ranks: Mapping[int, Rank]) -> list[str]:
    """A sentence for the culprits that went astray in the same decision.

    Args:
        members: of the group in which the fault shows, or all ranks that are concerned.
    """
    peers = [rank for rank in members if rank not in culprits and rank in ranks and ranks[rank].decisions][:MAX_PEERS]
    found: dict[Divergence, list[int]] = {}
    for rank in culprits[:MAX_CULPRITS]:
        if rank in ranks and ranks[rank].decisions:
            divergence = first_divergence(ranks[rank].decisions, [ranks[peer].decisions for peer in peers])
            if divergence is not None:
                found.setdefault(divergence, []).append(rank)
    return [_text(divergence, of, peers) for divergence, of in found.items()]


def _text(divergence: Divergence, ranks: Sequence[int], peers: Sequence[int]) -> str:
    at = "" if divergence.step is None else f" at step {divergence.step}"
    others = "the others" if len(peers) > 1 else ranks_text(peers)
    first = f"the first decision in which {ranks_text(ranks)} differed"
    return f"{first}: {divergence.name}={divergence.value}{at}; {others} {divergence.others}"


def first_divergence(own: Sequence[Decision], others: Sequence[Sequence[Decision]]) -> Divergence | None:
    """The earliest difference by the rank's own order, over all names; None: there is none that tells anything.

    A difference tells something if all peers had decided as the rank before, and all alike where it differs. What ranks
    always decide differently, such as which of them writes the log, is left out.
    """
    found: list[tuple[int, Divergence]] = []
    for name in dict.fromkeys(item.name for item in own):
        mine = [(at, item) for at, item in enumerate(own) if item.name == name]
        theirs = [[item for item in of if item.name == name] for of in others]
        divergence = _of_name(mine, [of for of in theirs if of])
        if divergence is not None:
            found.append(divergence)
    return min(found, key=lambda item: item[0])[1] if found else None


def _of_name(
    mine: Sequence[tuple[int, Decision]], theirs: Sequence[Sequence[Decision]]
) -> tuple[int, Divergence] | None:
    """Of one name: where in the rank's own order, and the difference."""
    numbers = {item.first for _, item in mine} | {item.first for of in theirs for item in of}
    agreed = False
    for number in sorted(numbers):
        here = next(((at, item) for at, item in mine if item.first <= number <= item.last), None)
        there = [item for of in theirs if (item := _at(of, number)) is not None]
        if here is None or not there:
            continue
        at, item = here
        values = {(other.value, other.digest) for other in there}
        if values == {(item.value, item.digest)}:
            agreed = True
            continue
        if not agreed or len(values) > 1:
            return None
        # Of a value that the rank kept while the others changed theirs, the step is not that of its first decision.
        step = item.step if item.first == number else None
        return at, Divergence(item.name, item.value, there[0].value, step)
    return None


def _at(decisions: Sequence[Decision], number: int) -> Decision | None:
    return next((item for item in decisions if item.first <= number <= item.last), None)
