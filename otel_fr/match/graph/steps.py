"""Ranks that left out calls, or made too many, found from how far each rank is in each group.

Source of the rule: ranks of one job run the same program, so each is at some point of one common sequence of calls. If
one rank has made more calls of group X than another, it cannot have made fewer of group Y: one of the two has left out
a call or made one too many. The smallest set of ranks that explains all such conflicts is out of step.

Ranks that share two groups are compared by their counts in these groups. If that does not decide, their counts in
groups of one kind (all tensor-parallel groups, for example) are compared too: groups with the same description or,
without one, with the same steps between their members. If the stages of a pipeline have programs of their own, only
ranks of one stage are compared. Messages are counted like the calls of a group.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from otel_fr.identity import Stream
from otel_fr.match.facts.calls import pair_of
from otel_fr.match.facts.instances import Instance
from otel_fr.match.facts.known import Facts
from otel_fr.match.graph.conflicts import MAX_CLASSES, Axis, Conflict, between_ends, fewest, find_conflicts
from otel_fr.match.model import Call, Ending, Evidence, Group
from otel_fr.presentation import UNDESCRIBED


@dataclass(frozen=True)
class Steps:
    """The conflicts between ranks.

    Attributes:
        shared: conflicts between ranks of the same two groups.
        alike: conflicts between ranks whose groups have the same descriptions, which assumes that these ranks run
            alike.
        messages: conflicts between the two ends of messages. They count last, because a program may enqueue one end
            long before the other.
        groups, kinds: the progress that was compared.
    """

    shared: list[Conflict]
    alike: list[Conflict]
    messages: list[Conflict]
    groups: Mapping[str, Axis]
    kinds: Mapping[str, Axis]

    @cached_property
    def culprits(self) -> frozenset[int]:
        """The ranks that are out of step; empty: there are none, or two explanations are equally good.

        Conflicts that need the fewest assumptions decide first: those in groups that ranks share, then those of ranks
        that run alike (stages of a pipeline do not), then those between the ends of messages.
        """
        first, second = self.shared, self.shared + self.alike
        return fewest(first) or fewest(second) or fewest(second + self.messages)

    @cached_property
    def rivals(self) -> tuple[int, ...]:
        """The two ranks in conflict, if the other ranks do not show which of them is out of step; else ()."""
        sides = {ranks for conflict in self.shared + self.alike for ranks in conflict}
        ranks = sorted({rank for side in sides for rank in side})
        compared = {rank for axis in self.groups.values() for rank in axis}
        return tuple(ranks) if len(ranks) == len(sides) == 2 < len(compared) else ()

    def behind(self, rank: int) -> int:
        """Return how many calls fewer the rank has made than a rank in conflict with it, in all groups of both."""
        rivals = [c.theirs if rank in c.ours else c.ours for c in self.shared + self.alike if rank in c.ours + c.theirs]
        others = sorted({other for side in rivals for other in side})[:MAX_CLASSES]
        return max(
            (
                sum(max(0, axis[other] - axis[rank]) for axis in axes.values() if rank in axis and other in axis)
                for axes in (self.groups, self.kinds)
                for other in others
            ),
            default=0,
        )


MAX_PLACES = 200_000
"""Limit for one rank: its waiting calls times the sum of its axes and newer calls. Calls beyond that are not compared.
A rank that waits in 64 calls, is in 100 groups and has made 1,000 calls since has 70,400."""


def compare_steps(facts: Facts, instances: Sequence[Instance]) -> Steps:  # noqa: C901, PLR0912
    """Return the conflicts between ranks.

    Args:
        instances: those in which ranks wait. The ranks that joined one are compared by where they are in other groups.
    """
    evidence = facts.evidence
    known = {rank for rank, info in evidence.ranks.items() if info.ending is not Ending.UNKNOWN and info.complete}
    ended = {rank for rank in known if evidence.ranks[rank].ending is Ending.CLEAN}
    enqueued = _enqueued(evidence, known)
    of_group = {id_: _kind(group) for id_, group in evidence.groups.items()}
    of_messages = _count_messages(evidence, enqueued, of_group)
    for instance in instances:
        _count_pair(instance, enqueued)
    for instance in instances:
        axis = axis_of(instance.group.id, instance.stream)
        # Progress does not count monitored barriers, so the ones that ranks wait in are added.
        if instance.stream != "p2p" and axis not in of_group:
            of_group[axis] = axis_of(of_group[instance.group.id], instance.stream)
            for rank in known.intersection(instance.members):
                enqueued[rank][axis] = instance.sequence_id - (rank not in instance.calls)
    stages = _stages(evidence, enqueued, of_group, of_messages)
    positions = _positions(facts, instances, enqueued)
    by_rank: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for place, joined in positions.items():
        for rank in joined:
            by_rank[rank].append(place)
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    pairs: dict[str, dict[int, int]] = defaultdict(dict)
    of_kind: dict[tuple[str, int], dict[int, dict[str, int]]] = defaultdict(dict)
    alike: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, own in enqueued.items():
        times = Counter(of_group[id_] for id_ in own if id_ in of_group)
        kinds = {
            id_: kind + stages.get(kind, {}).get(rank, "")
            for id_ in own
            if (kind := of_group.get(id_)) is not None and times[kind] == 1
        }
        for id_, count in own.items():
            if id_ not in of_group:
                pairs[id_][rank] = count
            elif id_ not in of_messages:
                groups[id_][rank] = count
            if id_ in kinds:
                alike[kinds[id_]][rank] = count
        for id_, number in by_rank.get(rank, ()):
            if id_ in kinds:
                before = positions[id_, number][rank]
                of_kind[kinds[id_], number][rank] = {kinds.get(own, own): count for own, count in before.items()}
    return Steps(
        find_conflicts(groups, positions, ended),
        find_conflicts(alike, of_kind, ended),
        between_ends(pairs, groups, positions, ended) + between_ends(pairs, alike, of_kind, ended),
        groups,
        alike,
    )


ALIKE = 0.75
"""Ratio of the stages' messages above which stages of one rank run alike."""


def _stages(
    evidence: Evidence, enqueued: Mapping[int, Mapping[str, int]], kinds: Mapping[str, str], of_messages: frozenset[str]
) -> dict[str, Mapping[int, str]]:
    """Return the kinds of groups that a pipeline's stages use differently, each with the stage of every rank.

    A stage is a position in the groups that exchange messages. If each stage has several ranks, stages differ in
    messages, and in groups that they have not called about equally often. If a stage has one rank, the stages may be
    the ranks of a ring, which run alike: they differ only in messages, and only if the counts differ by far.
    """
    exchanging = {kinds[id_] for id_ in evidence.groups if axis_of(id_, "p2p") in of_messages}
    found: dict[int, str] = defaultdict(str)
    for id_, kind in sorted(kinds.items()) if exchanging else ():
        if kind in exchanging and id_ in evidence.groups:
            for position, rank in enumerate(evidence.groups[id_].ranks):
                found[rank] += f" stage {position}"
    furthest: dict[str, dict[str, int]] = defaultdict(dict)
    for rank in enqueued.keys() & found.keys():
        for id_, count in enqueued[rank].items():
            if id_ in kinds:
                of_kind = furthest[kinds[id_]]
                of_kind[found[rank]] = max(of_kind.get(found[rank], 0), count)
    spans = {kind: (min(of.values()), max(of.values())) for kind, of in furthest.items()}
    messages = {axis_of(kind, "p2p") for kind in exchanging}
    if min(Counter(found.values()).values(), default=0) > 1:
        return dict.fromkeys(messages | {kind for kind, (least, most) in spans.items() if most > least + 1}, found)
    return {kind: found for kind in messages & spans.keys() if spans[kind][0] < ALIKE * spans[kind][1]}


def axis_of(group: str, stream: Stream) -> str:
    """Return the name under which the calls of a group, or of a kind of groups, are counted."""
    return group if stream == "collective" else f"{group} {stream}"


def _count_messages(
    evidence: Evidence, enqueued: Mapping[int, dict[str, int]], of_group: dict[str, str]
) -> frozenset[str]:
    """Add how many messages each rank has enqueued in each group that has any. Return the names of these axes.

    The members of a group make different numbers of them (the first and the last stage of a pipeline make fewer), so
    these counts are compared only between groups of one kind.
    """
    counts: dict[str, dict[int, int]] = {}
    for id_, group in evidence.groups.items():
        known = {rank: evidence.ranks[rank].progress.get(id_) for rank in group.ranks if rank in enqueued}
        found = {rank: 0 if progress is None else progress.messages for rank, progress in known.items()}
        counts[id_] = {rank: count for rank, count in found.items() if count is not None}
    exchanging = {of_group[id_] for id_, own in counts.items() if any(own.values())}
    axes = {id_: axis_of(id_, "p2p") for id_ in counts if of_group[id_] in exchanging}
    for id_, axis in axes.items():
        of_group[axis] = axis_of(of_group[id_], "p2p")
        for rank, count in counts[id_].items():
            enqueued[rank][axis] = count
    return frozenset(axes.values())


def _count_pair(instance: Instance, enqueued: Mapping[int, dict[str, int]]) -> None:
    """Add how many messages two ranks have exchanged, if one of them waits in this message without the other."""
    if instance.p2p is None or len(instance.calls) != 1 or not enqueued.keys() >= set(instance.members):
        return
    for rank in instance.members:
        axis, count = _pair_axis(instance.group.id, *instance.p2p[:3]), instance.p2p[3] + (rank in instance.calls)
        known = enqueued[rank].setdefault(axis, count)
        # Of several such messages, the caller has made the last one, and the other rank not even the first.
        enqueued[rank][axis] = max(known, count) if rank in instance.calls else min(known, count)


def _pair_axis(group: str, source: int, destination: int, tag: int) -> str:
    return f"{group} {source}>{destination} {tag}"


def _kind(group: Group) -> str:
    """Return what corresponding groups have in common: the description, or else the steps between members."""
    if group.description not in UNDESCRIBED:
        return group.description
    return "steps " + " ".join(str(rank - group.ranks[0]) for rank in group.ranks)


def _enqueued(evidence: Evidence, known: set[int]) -> dict[int, dict[str, int]]:
    """Return rank -> group -> how many calls the rank has enqueued: 0 if it has not used a group that it belongs to.

    Groups are left out if their collectives failed and ranks caught that: each rank may have given up at another place.
    """
    found: dict[int, dict[str, int]] = {rank: {} for rank in sorted(known)}
    given_up = {call.group for call in evidence.calls if call.left and call.stream == "collective"}
    for id_, group in evidence.groups.items():
        for rank in known.intersection(group.ranks if id_ not in given_up else ()):
            progress = evidence.ranks[rank].progress.get(id_)
            count = 0 if progress is None else progress.enqueued
            if count is not None:
                found[rank][id_] = count
    return found


def _positions(  # noqa: C901
    facts: Facts, instances: Sequence[Instance], enqueued: Mapping[int, Mapping[str, int]]
) -> dict[tuple[str, int], dict[int, dict[str, int]]]:
    """Return (axis, number of a call) -> rank that made it -> axis -> calls of that axis that it had made by then.

    Ranks whose later calls are not all recorded are left out.
    """
    lasts = facts.lasts
    oldest: dict[int, int] = {}
    for instance in instances:
        for rank in instance.calls:
            if rank in enqueued:
                oldest[rank] = min(oldest.get(rank, instance.call(rank).record), instance.call(rank).record)
    later: dict[int, list[Call]] = defaultdict(list)
    for rank, first in oldest.items():
        later[rank] = [call for call in facts.by_rank[rank] if call.record > first]
    found: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
    for rank, own in enqueued.items():
        newest = lasts[rank].call if rank in lasts else None
        if newest is not None and own.get(axis := axis_of(newest.group, newest.stream)) == newest.sequence_id:
            found.setdefault((axis, newest.sequence_id), {})[rank] = dict(own)
    room = dict.fromkeys(enqueued, MAX_PLACES)
    for instance in instances:
        for rank in instance.calls:
            cost = len(enqueued.get(rank, ())) + len(later[rank])
            if rank not in enqueued or room[rank] < cost:
                continue
            room[rank] -= cost
            record = instance.call(rank).record
            after = [call for call in later[rank] if call.record > record]
            if len(after) != lasts[rank].call.record - record:
                continue
            since: dict[str, set[int]] = defaultdict(set)
            for call in after:
                since[axis_of(call.group, call.stream)].add(call.sequence_id)
                if (pair := pair_of(call)) is not None:
                    since[_pair_axis(call.group, *pair, call.signature.tag or 0)].add(call.pair_index)
            axis = axis_of(instance.group.id, instance.stream)
            found.setdefault((axis, instance.call(rank).sequence_id), {})[rank] = {
                id_: count - len(since[id_]) for id_, count in enqueued[rank].items()
            }
    return found
