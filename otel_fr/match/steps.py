"""Ranks that left out calls, or made calls too many, found from how far each rank is in each group.

Source of the rule: ranks of one job run the same program, so each is at some point of one common sequence of calls. If
one rank has made more calls of group X than another, it cannot have made fewer of group Y: one of the two has left out
a call or made one too many. The ranks that explain all such conflicts, and are the fewest, are out of step.

Ranks that share two groups are compared by the numbers of these groups. If that does not decide, the numbers of groups
of one kind (all tensor-parallel groups, for example) are compared too: groups with the same description or, without
one, with the same steps between their members. Of a pipeline whose stages have
programs of their own, only ranks of one stage are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from otel_fr.match.instances import Instance, LastCall
from otel_fr.match.model import Call, Ending, Evidence, Group, Stream
from otel_fr.presentation import UNDESCRIBED

MAX_CLASSES = 64
"""Different progress of the ranks of two axes that is compared in pairs; with more, the ranks do not run alike."""

FEW = 4
"""Fewer than one in so many ranks are out of step if all ranks run alike."""

MAX_LAG = 2
ALIKE = 0.75
"""Stages run alike if their calls of each kind differ by no more than so many, or have at least this ratio."""

Axis = Mapping[int, int]
"""Rank -> how many calls of one group, or of its only group of one kind, it has enqueued."""


class Conflict(NamedTuple):
    """Two sets of ranks that cannot have run the same program; each rank of one conflicts with each of the other."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The conflicts between ranks.

    Attributes:
        shared: those between ranks of the same two groups. alike: those between ranks whose groups have the same
                descriptions, which assumes that these ranks run alike.
        groups, descriptions: the progress that was compared.
    """

    shared: list[Conflict]
    alike: list[Conflict]
    groups: Mapping[str, Axis]
    kinds: Mapping[str, Axis]

    @property
    def culprits(self) -> frozenset[int]:
        """The ranks that are out of step; empty: none is, or two explanations are equally good.

        Groups of one kind may differ (stages of a pipeline do): if most ranks do not run alike by that comparison, the
        ranks that share groups decide.
        """
        everywhere = _fewest(self.shared + self.alike)
        compared = {rank for axis in self.groups.values() for rank in axis}
        if len(everywhere) * FEW < len(compared):
            return everywhere or _fewest(self.shared)
        return _fewest(self.shared) or everywhere

    def behind(self, rank: int) -> int:
        """How many calls fewer it has made than a rank in conflict with it, in all groups that both have."""
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


def compare_steps(evidence: Evidence, instances: Iterable[Instance], lasts: Mapping[int, LastCall]) -> Steps:
    """The conflicts between ranks.

    Args:
        instances: those in which ranks wait: where ranks that joined one stand in the other groups is compared.
        lasts: rank -> its newest call.
    """
    known = {rank for rank, info in evidence.ranks.items() if info.ending is not Ending.UNKNOWN and info.complete}
    ended = {rank for rank in known if evidence.ranks[rank].ending is Ending.CLEAN}
    instances = [instance for instance in instances if instance.stream != "p2p"]
    enqueued = _enqueued(evidence, known)
    of_group = {id_: _kind(group) for id_, group in evidence.groups.items()}
    for instance in instances:
        axis = _axis(instance.group.id, instance.stream)
        if axis not in of_group:  # progress does not count these calls: those that ranks wait in are
            of_group[axis] = _axis(of_group[instance.group.id], instance.stream)
            for rank in known.intersection(instance.members):
                enqueued[rank][axis] = instance.sequence_id - (rank not in instance.calls)
    stages = _stages(evidence, enqueued, of_group)
    positions = _positions(evidence, instances, lasts, enqueued)
    by_rank: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for place, joined in positions.items():
        for rank in joined:
            by_rank[rank].append(place)
    of_kind: dict[tuple[str, int], dict[int, dict[str, int]]] = defaultdict(dict)
    groups: dict[str, dict[int, int]] = defaultdict(dict)
    alike: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, own in enqueued.items():
        times = Counter(of_group[id_] for id_ in own)
        kinds = {id_: of_group[id_] + stages.get(rank, "") for id_ in own if times[of_group[id_]] == 1}
        for id_, count in own.items():
            groups[id_][rank] = count
            if id_ in kinds:
                alike[kinds[id_]][rank] = count
        for id_, number in by_rank.get(rank, ()):
            if id_ in kinds:
                before = positions[id_, number][rank]
                of_kind[kinds[id_], number][rank] = {kinds[own]: before[own] for own in before if own in kinds}
    return Steps(_conflicts(groups, positions, ended), _conflicts(alike, of_kind, ended), groups, alike)


def _axis(group: str, stream: Stream) -> str:
    return group if stream == "collective" else f"{group} {stream}"


def _stages(evidence: Evidence, enqueued: Mapping[int, Mapping[str, int]], kinds: Mapping[str, str]) -> dict[int, str]:
    """Rank -> its position in its groups of the kinds that exchange messages, if such stages do not run alike.

    The stages of a pipeline may have programs of their own, the ranks of a ring exchange have one.
    """
    exchanging = {kinds[call.group] for call in evidence.calls if call.stream == "p2p" and call.group in kinds}
    found: dict[int, str] = defaultdict(str)
    for id_, kind in sorted(kinds.items()) if exchanging else ():
        if kind in exchanging:
            for position, rank in enumerate(evidence.groups[id_].ranks):
                found[rank] += f" stage {position}"
    furthest: dict[str, dict[str, int]] = defaultdict(dict)
    for rank, own in enqueued.items():
        if rank in found:
            for id_, count in own.items():
                of_kind = furthest[kinds[id_]]
                of_kind[found[rank]] = max(of_kind.get(found[rank], 0), count)
    return found if any(_differ(counts.values()) for counts in furthest.values()) else {}


def _differ(counts: Iterable[int]) -> bool:
    """True if the stages' calls of a kind differ by more than those of ranks that run one program do."""
    least, most = min(counts), max(counts)
    return most - least > MAX_LAG and least < ALIKE * most


def _kind(group: Group) -> str:
    """What groups that correspond to each other have in common: the description, or else the steps between members."""
    if group.description not in UNDESCRIBED:
        return group.description
    return "steps " + " ".join(str(rank - group.ranks[0]) for rank in group.ranks)


def _enqueued(evidence: Evidence, known: set[int]) -> dict[int, dict[str, int]]:
    """Rank -> group -> how many calls of it the rank has enqueued: 0 if it has not used a group that it belongs to."""
    found: dict[int, dict[str, int]] = {rank: {} for rank in sorted(known)}
    for id_, group in evidence.groups.items():
        for rank in known.intersection(group.ranks):
            progress = evidence.ranks[rank].progress.get(id_)
            count = 0 if progress is None else progress.enqueued
            if count is not None:
                found[rank][id_] = count
    return found


_Stands = Mapping[tuple[str, int], Mapping[int, Mapping[str, int]]]
"""(axis, number of a call in it) -> rank that joined it -> axis -> how many calls of it the rank had made before."""


def _positions(
    evidence: Evidence,
    instances: Sequence[Instance],
    lasts: Mapping[int, LastCall],
    enqueued: Mapping[int, Mapping[str, int]],
) -> dict[tuple[str, int], dict[int, dict[str, int]]]:
    """(group, number) -> rank that joined it -> group -> how many calls of that group it had enqueued before.

    Ranks of which not every later call is recorded are left out.
    """
    oldest: dict[int, int] = {}
    for instance in instances:
        for rank in instance.calls:
            if rank in enqueued:
                oldest[rank] = min(oldest.get(rank, instance.call(rank).record), instance.call(rank).record)
    later: dict[int, list[Call]] = defaultdict(list)
    for call in evidence.calls:
        if call.rank in oldest and call.record > oldest[call.rank]:
            later[call.rank].append(call)
    found: dict[tuple[str, int], dict[int, dict[str, int]]] = {}
    for instance in instances:
        for rank in instance.calls:
            if rank not in enqueued:
                continue
            record = instance.call(rank).record
            after = [call for call in later[rank] if call.record > record]
            if len(after) != lasts[rank].call.record - record:
                continue
            since: dict[str, set[int]] = defaultdict(set)
            for call in after:
                since[_axis(call.group, call.stream)].add(call.sequence_id)
            axis = _axis(instance.group.id, instance.stream)
            found.setdefault((axis, instance.sequence_id), {})[rank] = {
                id_: count - len(since[id_]) for id_, count in enqueued[rank].items()
            }
    return found


def _conflicts(axes: Mapping[str, Axis], stands: _Stands, ended: set[int]) -> list[Conflict]:
    """Conflicts between the ranks of any two axes, and with ranks that ended before others' calls."""
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    of_rank: dict[int, list[str]] = defaultdict(list)
    for name in sorted(axes):
        for rank in axes[name]:
            of_rank[rank].append(name)
    for rank in sorted(of_rank):
        for pair in combinations(of_rank[rank], 2):
            members[pair].append(rank)
    found: list[Conflict] = []
    for (first, second), ranks in members.items():
        if len(ranks) > 1:
            found += _crossing(axes[first], axes[second], ranks)
    for (name, number), before in stands.items():
        if name not in axes:
            continue
        others: dict[str, list[int]] = defaultdict(list)
        for rank in axes[name]:
            for other in of_rank[rank]:
                if other != name:
                    others[other].append(rank)
        for other, ranks in others.items():
            joined = {rank: before[rank][other] for rank in ranks if other in before.get(rank, ())}
            found += _around(axes[name], number, axes[other], joined, ranks)
    for axis in axes.values():
        found += _after_the_end(axis, ended)
    return found


def _crossing(first: Axis, second: Axis, ranks: list[int]) -> list[Conflict]:
    """Ranks of which one is ahead in the first axis and the other in the second."""
    classes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank in ranks:
        classes[first[rank], second[rank]].append(rank)
    if not 1 < len(classes) <= MAX_CLASSES:
        return []
    return [
        Conflict(tuple(classes[a]), tuple(classes[b]))
        for a, b in combinations(sorted(classes), 2)
        if (a[0] - b[0]) * (a[1] - b[1]) < 0
    ]


def _around(axis: Axis, number: int, other: Axis, before: Mapping[int, int], ranks: list[int]) -> list[Conflict]:
    """Ranks that made another number of calls of the other axis before call ``number`` of the first.

    Args:
        before: rank that joined the call -> calls of the other axis that it had made before. ranks: those of both axes.
    """
    by_count: dict[int, list[int]] = defaultdict(list)
    for rank, count in before.items():
        by_count[count].append(rank)
    if len(by_count) > MAX_CLASSES:
        return []
    found = [Conflict(tuple(by_count[a]), tuple(by_count[b])) for a, b in combinations(sorted(by_count), 2)]
    rest = [rank for rank in ranks if rank not in before]
    for count, joined in by_count.items():
        wrong = [r for r in rest if (other[r] > count if axis[r] < number else other[r] < count)]
        if wrong:
            found.append(Conflict(tuple(joined), tuple(wrong)))
    return found


def _after_the_end(axis: Axis, ended: set[int]) -> list[Conflict]:
    """Ranks that made more calls than ranks that ended without an error."""
    classes: dict[int, list[int]] = defaultdict(list)
    for rank, count in axis.items():
        if rank in ended:
            classes[count].append(rank)
    if not 0 < len(classes) <= MAX_CLASSES:
        return []
    found = []
    for count, finished in classes.items():
        beyond = tuple(rank for rank, other in axis.items() if other > count)
        if beyond:
            found.append(Conflict(tuple(finished), beyond))
    return found


def _fewest(conflicts: Sequence[Conflict]) -> frozenset[int]:
    """The ranks that have a part in all conflicts, fewer than half of those in conflict; empty if that is not clear.

    Ranks in conflict with the most others are taken first. Ranks with a part in the same conflicts are taken together,
    so that half of a large job against the other half costs no more than two ranks.
    """
    parts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, conflict in enumerate(conflicts):
        for side, ranks in enumerate(conflict):
            for rank in ranks:
                parts[rank].append((index, side))
    alike: dict[tuple[tuple[int, int], ...], list[int]] = defaultdict(list)
    for rank, own in sorted(parts.items()):
        alike[tuple(own)].append(rank)
    classes = list(alike.values())
    on_side: dict[tuple[int, int], set[int]] = defaultdict(set)
    for number, places in enumerate(alike):
        for index, side in places:
            on_side[index, side].add(number)
    opponents = {
        number: set[int]().union(*(on_side[index, 1 - side] for index, side in places))
        for number, places in enumerate(alike)
    }
    taken: list[int] = []
    while opponents:
        weights = {number: sum(len(classes[other]) for other in others) for number, others in opponents.items()}
        most = max(weights.values())
        top = {number for number, weight in weights.items() if weight == most}
        taken += [rank for number in top for rank in classes[number]]
        if 2 * len(taken) >= len(parts):
            return frozenset()
        opponents = {n: left for n, others in opponents.items() if n not in top and (left := others - top)}
    return frozenset(taken)
