"""Misdirected messages: a send and a receive that would match if one of them named another peer or tag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from otel_fr.match.facts.instances import Instance, InstanceKey
from otel_fr.match.facts.legal import compare
from otel_fr.match.model import Call

MIN_LIKE: Final = 3
"""After so many messages of one pair and tag, including the last, another peer or tag is out of place."""


@dataclass(frozen=True, slots=True)
class MisdirectedMessage:
    """A send and a receive without counterparts, which differ in one field.

    Attributes:
        astray: the instance of the call with the wrong peer or tag; the send's, if it is unknown which tag is wrong.
        other: the instance of the call that would match it.
        culprits: the rank that called with the wrong peer or tag; both ranks, if it is unknown which tag is wrong.
    """

    astray: Instance
    other: Instance
    culprits: tuple[int, ...]

    @property
    def strangeness(self) -> int:
        """How many messages the culprit has exchanged with the peer that it names, minus those with the right peer."""
        return 0 if self.tags_differ else _index(self.astray) - _index(self.other)

    @property
    def breaks_pattern(self) -> bool:
        """True if the culprit has called no message like this one before, but several like the one that would match."""
        return _index(self.astray) == 0 and _index(self.other) + 1 >= MIN_LIKE

    @property
    def tags_differ(self) -> bool:
        return self.astray.members == self.other.members


def find_misdirected(
    instances: Mapping[InstanceKey, Instance], waited_in: Iterable[InstanceKey]
) -> MisdirectedMessage | None:
    """Return the misdirected message behind these waits; None: there is none, or it is not unique.

    Of several, return the one in which the culprit has exchanged the fewest messages with the peer that it names,
    compared with the other peer. If there are still several, return the one in which the two calls have the closest
    sequence numbers, since ranks of one job run alike. A call is not misdirected if its rank has exchanged more
    messages with the peer that it names than with the other peer.
    """
    keys = dict.fromkeys(_first_lone(instances, key) for key in waited_in if len(key) == 6)
    lone = [instances[key] for key in keys if key is not None]
    calls = [(next(iter(instance.calls.values()))[-1], instance) for instance in lone]
    # By source and by destination: a pair must have one of them in common.
    of_source: dict[tuple[str, int], list[tuple[Call, Instance]]] = {}
    of_destination: dict[tuple[str, int], list[tuple[Call, Instance]]] = {}
    for wanted, receive in calls:
        if wanted.signature.operation == "recv":
            of_source.setdefault((wanted.group, receive.members[0]), []).append((wanted, receive))
            of_destination.setdefault((wanted.group, wanted.rank), []).append((wanted, receive))
    nearest, best = (0, 0), list[MisdirectedMessage]()
    for sent, send in calls:
        if sent.signature.operation != "send":
            continue
        same_source = of_source.get((sent.group, sent.rank), [])
        same_destination = of_destination.get((sent.group, send.members[1]), [])
        others = [(wanted, receive) for wanted, receive in same_destination if receive.members[0] != sent.rank]
        for wanted, receive in chain(same_source, others):
            pair = _misdirected(send, receive)
            if pair is None:
                continue
            distance = (pair.strangeness, abs(sent.sequence_id - wanted.sequence_id))
            if (best and distance > nearest) or compare(send.group, sent, wanted) is not None:
                continue
            best = [*best, pair] if best and distance == nearest else [pair]
            nearest = distance
    return best[0] if len(best) == 1 else None


def _first_lone(instances: Mapping[InstanceKey, Instance], key: InstanceKey) -> InstanceKey | None:
    """Return the message itself, or the next one of its pair and tag that has only one half.

    If hosts run ahead of their devices, the next send takes the place of one that went astray, so that the last receive
    remains alone.
    """
    while key in instances and len(key) == 6:
        if len(instances[key].calls) == 1:
            return key
        key = (*key[:5], key[5] + 1)
    return None


def _index(message: Instance) -> int:
    """The message's number among those like it, from 0."""
    return message.p2p[3] if message.p2p is not None else 0


def _misdirected(send: Instance, receive: Instance) -> MisdirectedMessage | None:
    """Return the pair if these two messages of one group differ in one field only."""
    if send.p2p is None or receive.p2p is None:
        return None
    source, destination, send_tag, sent_before = send.p2p
    peer, receiver, receive_tag, received_before = receive.p2p
    is_same_pair = send.members == receive.members
    if send_tag != receive_tag:
        if not is_same_pair:
            return None
        for wrong, other, rank in ((send, receive, source), (receive, send, destination)):
            if (found := MisdirectedMessage(wrong, other, (rank,))).breaks_pattern:
                return found
        return MisdirectedMessage(send, receive, tuple(sorted((source, destination))))
    if is_same_pair:
        return None  # two messages between the same two ranks: neither has a wrong peer
    if source == peer and sent_before <= received_before:
        return MisdirectedMessage(send, receive, (source,))
    if destination == receiver and received_before <= sent_before:
        return MisdirectedMessage(receive, send, (receiver,))
    return None
