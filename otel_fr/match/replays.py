"""How many replays of CUDA graphs ranks have launched: evidence beside a fault, never a fault alone.

Collectives that a graph replays pass no operator and no recorder, so this is all that is known of their progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from otel_fr.decision_names import GRAPH_REPLAYS
from otel_fr.match.model import Rank
from otel_fr.presentation import ranks_text

MAX_PEERS = 64
"""Peers that culprits are compared with, as in `otel_fr.match.decisions`."""


def replays_text(culprits: Sequence[int], members: Iterable[int], ranks: Mapping[int, Rank]) -> str:
    """One sentence; "" if the culprits or their peers have launched none that is known."""
    own = _launched(culprits, ranks)
    theirs = _launched([rank for rank in members if rank not in culprits][:MAX_PEERS], ranks)
    if not own or not theirs:
        return ""
    what = "replays of CUDA graphs launched"
    if len({*own.values(), *theirs.values()}) == 1:
        return f"{what}: {_span(own)} by each of {ranks_text([*own, *theirs])}"
    return f"{what}: {_span(own)} by {ranks_text(own)}, {_span(theirs)} by {ranks_text(theirs)}"


def _launched(some: Iterable[int], ranks: Mapping[int, Rank]) -> dict[int, int]:
    found: dict[int, int] = {}
    for rank in some:
        for item in ranks[rank].decisions if rank in ranks else ():
            if item.name == GRAPH_REPLAYS:
                found[rank] = max(item.last, found.get(rank, 0))
    return found


def _span(launched: Mapping[int, int]) -> str:
    least, most = min(launched.values()), max(launched.values())
    return str(least) if least == most else f"{least} to {most}"
