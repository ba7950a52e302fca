"""Builds the wait-for graph over instances. It leads to ranks that wait nowhere, or to a cycle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache

from otel_fr.match.facts.calls import failed_late, gave_up, is_waiting
from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.known import Facts
from otel_fr.match.facts.mismatch import Mismatch
from otel_fr.match.facts.new_groups import names_of
from otel_fr.match.facts.ranks import was_stopped
from otel_fr.match.graph.movement import Patience, Queues
from otel_fr.match.graph.nodes import Node
from otel_fr.match.model import CallState, Ending, Evidence, Rank

MAX_WAITS = 256
"""Instances in which one rank waits that are followed: the first that it enqueued. Later calls wait behind these."""


def build(facts: Facts, deaths: frozenset[int]) -> dict[InstanceKey, Node]:
    """Return the nodes of the graph, in the order of the instances."""
    nodes = _waited_in(facts, deaths)
    joined = {key for key, node in nodes.items() if _all_joined(facts, node.instance, deaths)}
    members = _Members(facts, deaths, nodes, joined)
    heads: dict[tuple[str, str, bool, tuple[int, ...]], InstanceKey] = {}
    for key, node in nodes.items():
        # A creation of a group does not wait for an earlier one of other members.
        members_created = node.instance.members if node.instance.stream == "group" else ()
        head_key = (node.instance.group.id, node.instance.stream, node.is_left, members_created)
        if node.instance.stream != "p2p" and head_key in heads:
            node.behind = heads[head_key]
            continue
        members.sort(node)
        if node.culprits or node.silent or node.next or node.undecided or node.unrecorded:
            heads[head_key] = key
    _put_behind(nodes, joined)
    return nodes


def _waited_in(facts: Facts, deaths: frozenset[int]) -> dict[InstanceKey, Node]:
    """Return the instances in which ranks wait, with the mismatches from which they follow."""
    nodes: dict[InstanceKey, Node] = {}
    lasting: dict[tuple[str, str], Mismatch] = {
        (m.instance.group.id, m.instance.stream): m
        for m in reversed(facts.mismatches)
        if m.instance.stream != "p2p" and not m.is_over
    }
    for key, instance in facts.instances.items():
        waiting = _waiting_in(facts, instance, deaths)
        if waiting and not _was_cancelled(facts, instance, waiting, deaths):
            nodes[key] = Node(instance, waiting, all(instance.call(rank).left for rank in waiting))
            bad = lasting.get((instance.group.id, instance.stream))
            if bad is not None and instance.sequence_id >= bad.instance.sequence_id:
                nodes[key].mismatch = bad
    for bad in facts.mismatches:
        if bad.instance.stream == "p2p" and bad.instance.key in nodes:
            nodes[bad.instance.key].mismatch = bad
        if bad.instance.stream == "group":
            names = names_of(bad.instance)
            for node in nodes.values():
                if node.mismatch is None and node.instance.stream != "group" and node.instance.group.name in names:
                    node.mismatch = bad
    return nodes


class _Waits:
    """The instances in which each rank waits, or waited until it caught their failure."""

    def __init__(self, nodes: Mapping[InstanceKey, Node], recovering: Iterable[int]) -> None:
        """``recovering``: ranks that have caught a failure and completed no call since."""
        self._nodes = nodes
        self._known: dict[int, list[InstanceKey]] = {}
        self._left: dict[int, list[InstanceKey]] = {rank: [] for rank in recovering}
        for key, node in nodes.items():
            for rank in node.waiting:
                of = self._left if node.instance.call(rank).left else self._known
                of.setdefault(rank, []).append(key)
        for of in (self._known, self._left):
            for rank, keys in of.items():
                if len(keys) > MAX_WAITS:
                    oldest = set(sorted(keys, key=lambda key: nodes[key].instance.call(rank).record)[:MAX_WAITS])
                    of[rank] = [key for key in keys if key in oldest]

    def of(self, rank: int, node: Node) -> Sequence[InstanceKey]:
        """Return the instances in which the rank waits while others wait for it in the node.

        These are at most `MAX_WAITS`, those that it enqueued first. If all ranks in the node have continued after a
        failure, they are the instances that the rank itself has left.
        """
        return self.before(rank, node) or self._known.get(rank) or ()

    def before(self, rank: int, node: Node) -> Sequence[InstanceKey] | None:
        """Return the instances that the rank itself has left; None: there are none, or the node's ranks still wait."""
        return self._left.get(rank) if node.is_left else None

    def counted(self, info: Rank) -> list[InstanceKey]:
        """Return the instances in which the rank waits by its counts, if the evidence lacks its call."""
        if info.unlisted is None:
            return []
        counts = [(group, own.enqueued) for group, own in info.progress.items() if own.enqueued != own.completed]
        keys: list[InstanceKey] = [(group, "collective", number) for group, number in counts if number]
        return [key for key in keys if key in self._nodes]


class _Members:
    """Determines for each member of a node what it does meanwhile."""

    def __init__(
        self, facts: Facts, deaths: frozenset[int], nodes: Mapping[InstanceKey, Node], joined: Container[InstanceKey]
    ) -> None:
        calls, window = facts.evidence.calls, facts.evidence.window
        self._facts, self._deaths, self._nodes, self._joined = facts, deaths, nodes, joined
        self._waits = _Waits(nodes, {call.rank for call in calls if call.left and not call.caught})
        self._reached = _reached(facts.evidence) if joined else {}
        self._patience, self._queues = Patience(facts), Queues(facts.evidence, nodes)
        self._lasts = {(node.instance.group.id, node.instance.stream): node.instance for node in nodes.values()}
        of_any = [call for call in calls if call.signature.any_source]
        open_ = [call for call in of_any if call.state is not CallState.COMPLETED and not call.caught]
        self._takes_any = {(call.group, call.rank) for call in open_}
        """(group, rank) of each receive from any source that has not completed and was not given up."""
        self._vague = {call.rank for call in of_any if call.signature.peer is not None and is_waiting(call, window)}

    def sort(self, node: Node) -> None:
        """Add the members to the node's lists."""
        self._sort(node)
        _spare_vague(node, self._vague)
        self._spare_ended(node)
        if node.instance.stream != "p2p":
            _spare_receivers(node, {rank for _, rank in self._takes_any})

    def _sort(self, node: Node) -> None:  # noqa: C901, PLR0912
        is_later, waits, may_join = self._is_later(node), self._waits, self._patience.may_join
        instance = node.instance
        untold: list[int] = []
        seconds = self._patience.of(instance)
        for rank in instance.members:
            info = self._facts.evidence.ranks.get(rank)
            joined = self._facts.has_joined(instance, rank)
            if rank in self._deaths and waits.before(rank, node) is None:
                if joined is not True or _was_in_it(instance, rank):
                    node.dead.append(rank)
            elif joined is True:
                self._queues.sort(node, rank, waits.of(rank, node))
            elif info is not None and info.has_gaps:
                node.unrecorded.append(rank)
            elif info is None or info.ending is Ending.UNKNOWN:
                node.silent.append(rank)
            elif joined is None:
                if info.records_creations or instance.stream != "group":
                    untold.append(rank)
                elif elsewhere := list(waits.of(rank, node)):
                    node.next[rank] = elsewhere  # what it created is not known, but it waits in another call
                else:
                    node.unrecorded.append(rank)
            elif instance.stream == "p2p" and (instance.group.id, rank) in self._takes_any:
                # A receive from any source may be meant for this send, so the send is not judged.
                node.undecided.append(rank)
            elif info.exiting and not info.has_destroyed(instance.group.id) and may_join(info, seconds):
                node.undecided.append(rank)  # whether it ends well, and how soon, shows who is at fault
            elif info.has_left(instance.group.id) and not info.exception and waits.before(rank, node) is None:
                # A rank that exits because its own collective failed had waited there: it did not leave.
                node.idle.append(rank)
            elif elsewhere := [key for key in waits.of(rank, node) if not is_later(key)] or waits.counted(info):
                node.next[rank] = elsewhere
            elif info.unlisted is not None or waits.before(rank, node) is not None or may_join(info, seconds):
                node.undecided.append(rank)
            else:
                node.idle.append(rank)
        if (node.silent or untold or node.unrecorded) and self._facts.completions.prove_joined(instance):
            node.silent.clear()
            node.unrecorded.clear()
        else:
            node.undecided.extend(untold)

    def _is_later(self, node: Node) -> Callable[[InstanceKey], bool]:
        """Return a function that says whether an instance waits behind this one.

        It does if all joined it, and ranks that wait here enqueued it after this one. A rank that joined such an
        instance but not this collective left this one out. (A receive may be posted long before its message is due, so
        this does not hold for messages.) The function is called for one instance at a time, because ranks may have many
        calls in flight.
        """
        here = node.instance
        if here.stream == "p2p" or _is_ahead(here, self._reached):
            return lambda _: False

        @cache
        def is_later(key: InstanceKey) -> bool:
            there = self._nodes[key].instance
            return key in self._joined and any(
                here.call(rank).record < there.call(rank).record
                for rank in set(node.waiting).intersection(self._nodes[key].waiting)
            )

        return is_later

    def _spare_ended(self, node: Node) -> None:
        """Remove dead ranks that may have completed the call, because their backend shows its end late or not at all.

        They block a later call of the stream instead: others wait in it, and these ranks have not joined it.
        """
        last = self._lasts[node.instance.group.id, node.instance.stream]
        if node.instance.p2p is not None or last.sequence_id <= node.instance.sequence_id:
            return
        for rank in list(node.dead):
            call = node.instance.call(rank) if rank in node.instance.calls else None
            is_seen = call is not None and call.state is not CallState.UNKNOWN and call.queued is not None
            if call is not None and not is_seen and self._facts.has_joined(last, rank) is False:
                node.dead.remove(rank)


def _all_joined(facts: Facts, instance: Instance, deaths: frozenset[int]) -> bool:
    """True if every member has enqueued it and none of their endings is a cause: no missing rank blocks it."""
    return deaths.isdisjoint(instance.members) and all(facts.has_joined(instance, rank) for rank in instance.members)


def _reached(evidence: Evidence) -> dict[str, list[int]]:
    """Return, for each group description, the last enqueued numbers of ranks that have one such group, ascending."""
    found: dict[str, list[int]] = {}
    for info in evidence.ranks.values():
        own: dict[str, list[int | None]] = {}
        for id_, progress in info.progress.items():
            if id_ in evidence.groups:
                own.setdefault(evidence.groups[id_].description, []).append(progress.enqueued)
        for description, counts in own.items():
            if len(counts) == 1 and counts[0] is not None:
                found.setdefault(description, []).append(counts[0])
    return {description: sorted(counts) for description, counts in found.items()}


def _is_ahead(instance: Instance, reached: Mapping[str, list[int]]) -> bool:
    """True if the callers are ahead of most ranks.

    Most ranks have not reached the call of that number in their own group of this description.
    """
    counts = reached.get(instance.group.description, []) if instance.group.description else []
    return instance.stream == "collective" and 2 * bisect_left(counts, instance.sequence_id) > len(counts)


def _put_behind(nodes: Mapping[InstanceKey, Node], joined: Container[InstanceKey]) -> None:
    """Put calls that all joined behind the first call that blocks one of their ranks: devices execute calls in order.

    A blocking call lacks a rank, belongs to calls that do not fit together, or waits for such a call itself.
    """
    firsts: dict[int, tuple[int, InstanceKey]] = {}
    reached: dict[InstanceKey, set[InstanceKey]] = {}
    blocking = [key for key, node in nodes.items() if key not in joined or node.mismatch is not None]
    left = [key for key, node in nodes.items() if key in joined and node.behind is None and node.mismatch is None]
    while blocking:
        for key in blocking:
            for rank in nodes[key].waiting:
                record = nodes[key].instance.call(rank).record
                if nodes[key].instance.call(rank).left:
                    continue
                if rank not in firsts or record < firsts[rank][0]:
                    firsts[rank] = record, key
        blocking = [key for key in left if _is_put_behind(nodes, key, firsts, reached)]
        left = [key for key in left if nodes[key].behind is None]


def _is_put_behind(
    nodes: Mapping[InstanceKey, Node],
    key: InstanceKey,
    firsts: Mapping[int, tuple[int, InstanceKey]],
    reached: dict[InstanceKey, set[InstanceKey]],
) -> bool:
    """Put the node behind the first call that blocks one of its ranks, unless that call waits for the node.

    Args:
        firsts: rank -> the record and the instance of that call.
        reached: instance -> what it waits for, kept up to date.
    """
    node = nodes[key]
    for rank in node.waiting:
        record, first = firsts.get(rank, (0, key))
        if first == key or record > node.instance.call(rank).record:
            continue
        if first not in reached:
            reached[first] = _reached_from(nodes, first)
        if key not in reached[first]:
            node.behind = first
            for found in reached.values():
                if key in found:
                    found |= reached[first]
            return True
    return False


def _reached_from(nodes: Mapping[InstanceKey, Node], start: InstanceKey) -> set[InstanceKey]:
    """Return this node and all nodes for which it waits, directly or not."""
    seen, todo = {start}, [start]
    while todo:
        for target in nodes[todo.pop()].targets:
            if target in nodes and target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


def _waiting_in(facts: Facts, instance: Instance, deaths: frozenset[int]) -> tuple[int, ...]:
    """Return the ranks that wait in the instance. If a member is dead, no minimum wait applies.

    A rank that has ended well did not wait, except in a call that had lasted for the window when it failed.
    """
    window = facts.evidence.window if deaths.isdisjoint(instance.members) else 0.0
    waiting = []
    for rank in sorted(instance.calls):
        call = instance.call(rank)
        if (rank in deaths and not call.left) or not (is_waiting(call, window) or facts.syncs.waits_in(call)):
            continue
        if facts.evidence.ending_of(rank) is Ending.CLEAN and not failed_late(call, window):
            continue
        if not _is_served(instance, rank):
            waiting.append(rank)
    return tuple(waiting)


def _was_cancelled(facts: Facts, instance: Instance, waiting: Iterable[int], deaths: frozenset[int]) -> bool:
    """True if the call failed because the job was cancelled: a rank that is stopped closes its connections.

    Its callers and all members that did not join were stopped from outside, and none had waited for the window.
    """
    infos = facts.evidence.ranks

    def are_stopped(ranks: Iterable[int]) -> bool:
        return all(r in infos and was_stopped(infos[r]) for r in ranks)

    if not are_stopped(waiting) or not deaths.isdisjoint(instance.members):
        return False
    absent = [r for r in instance.members if not facts.has_joined(instance, r)]
    if not absent or not are_stopped(absent):
        return False
    calls = [instance.call(r) for r in waiting]
    return all(not gave_up(c) and c.duration is not None and c.duration < facts.evidence.window for c in calls)


def _is_served(instance: Instance, rank: int) -> bool:
    """True if the peer's half of the message has completed, so this half does not wait for a peer.

    gloo, for example, shows the end of a receive only to a thread that waits for it: one posted early seems in flight.
    """
    if instance.p2p is None or instance.call(rank).state is CallState.FAILED:
        return False
    return any(other != rank and instance.call(other).state is CallState.COMPLETED for other in instance.calls)


def _spare_vague(node: Node, vague: set[int]) -> None:
    """Remove members from ``idle`` that have a message in flight whose counterpart is unknown: they wait, too.

    It is unknown where they wait, so if nobody else is idle they become undecided.
    """
    held = [rank for rank in node.idle if rank in vague]
    node.idle[:] = [rank for rank in node.idle if rank not in vague]
    if held and not node.idle:
        node.undecided.extend(held)


def _spare_receivers(node: Node, receivers: Container[int]) -> None:
    """Remove members in a receive from any source from ``idle`` if others are idle, or undecided: they wait, too."""
    others = [rank for rank in node.idle if rank not in receivers]
    if others or node.undecided:
        node.idle[:] = others


def _was_in_it(instance: Instance, rank: int) -> bool:
    call = instance.call(rank) if rank in instance.calls else None
    return call is not None and call.state is not CallState.COMPLETED and not call.left
