"""The stages of a pipeline: ranks that have programs of their own, and are not compared with those of other stages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from otel_fr.match.model import Evidence, Stream

MAX_LAG = 2
ALIKE = 0.75
"""Stages run alike if their calls of each kind differ by no more than so many, or have at least this ratio."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Which ranks have programs of their own, by their positions in the groups that exchange messages.

    Attributes:
        of: rank -> its stage; empty: all ranks run alike. apart: the kinds of groups that stages use differently; None:
            all kinds.
    """

    of: Mapping[int, str]
    apart: frozenset[str] | None

    def suffix(self, kind: str, rank: int) -> str:
        return self.of.get(rank, "") if self.apart is None or kind in self.apart else ""


def find_stages(
    evidence: Evidence,
    enqueued: Mapping[int, Mapping[str, int]],
    kinds: Mapping[str, str],
    of_messages: frozenset[str],
) -> Stages:
    """The stages of a pipeline may have programs of their own, the ranks of a ring exchange have one.

    Where a stage has several ranks, kinds of groups in which all stages make as many calls are compared between stages
    too.
    """
    exchanging = {kinds[call.group] for call in evidence.calls if call.stream == "p2p" and call.group in kinds}
    exchanging |= {kinds[id_] for id_ in evidence.groups if axis_of(id_, "p2p") in of_messages}
    found: dict[int, str] = defaultdict(str)
    for id_, kind in sorted(kinds.items()) if exchanging else ():
        if kind in exchanging and id_ in evidence.groups:
            for position, rank in enumerate(evidence.groups[id_].ranks):
                found[rank] += f" stage {position}"
    furthest: dict[str, dict[str, int]] = defaultdict(dict)
    for rank, own in enqueued.items():
        if rank in found:
            for id_, count in own.items():
                if id_ in kinds:
                    of_kind = furthest[kinds[id_]]
                    of_kind[found[rank]] = max(of_kind.get(found[rank], 0), count)
    messages = {axis_of(kind, "p2p") for kind in exchanging}
    if min(Counter(found.values()).values(), default=0) > 1:
        unequal = {kind for kind, of in furthest.items() if max(of.values()) > min(of.values()) + 1}
        return Stages(found, frozenset(unequal | messages))
    if any(_are_far(of.values(), MAX_LAG) for of in furthest.values()):
        return Stages(found, None)
    few = {kind for kind in messages & furthest.keys() if _are_far(furthest[kind].values(), 0)}
    return Stages(found if few else {}, frozenset(few))


def _are_far(counts: Iterable[int], lag: int) -> bool:
    """True if the stages' calls of a kind differ by more than those of ranks that run one program do."""
    counts = list(counts)
    return max(counts) - min(counts) > lag and min(counts) < ALIKE * max(counts)


def axis_of(group: str, stream: Stream) -> str:
    """The name under which the calls of a group, or of a kind of groups, are counted."""
    return group if stream == "collective" else f"{group} {stream}"
