"""Messages gone astray: a send and a receive that fit each other but for the peer or the tag that one of them names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from otel_fr.match.instances import Instance, InstanceKey
from otel_fr.match.legal import compare
from otel_fr.match.model import Call
from otel_fr.match.waiting import Node


@dataclass(frozen=True, slots=True)
class Crossed:
    """A send nobody receives and a receive nobody sends to, one call's change away from each other.

    Attributes:
        astray: the instance of the call that names the wrong rank; with tags that differ, the send.
        other: the instance of the call that it would fit.
        culprits: the rank that names the wrong peer; both ranks where only the tags differ.
    """

    astray: Instance
    other: Instance
    culprits: tuple[int, ...]

    @property
    def tags_differ(self) -> bool:
        return len(self.culprits) > 1


def crossed(nodes: Mapping[InstanceKey, Node], circle: Iterable[InstanceKey]) -> Crossed | None:
    """The message gone astray that makes a circle of waiting ranks; None: none does, or several might.

    Of several, the one counts whose calls are nearest to each other by their ranks' own numbers: ranks of one job run
    alike. A call to a peer with whom its rank has exchanged more than with the other is no error of address.
    """
    lone = [nodes[key].instance for key in circle if len(key) == 6 and len(nodes[key].instance.calls) == 1]
    calls = [(next(iter(instance.calls.values()))[-1], instance) for instance in lone]
    sends = [(call, instance) for call, instance in calls if call.signature.operation == "send"]
    receives = [(call, instance) for call, instance in calls if call.signature.operation == "recv"]
    found: list[tuple[int, Crossed]] = []
    for sent, send in sends:
        for wanted, receive in receives:
            pair = _cross(sent, send, wanted, receive)
            if pair is not None and compare(send.group, sent, wanted) is None:
                found.append((abs(sent.sequence_id - wanted.sequence_id), pair))
    nearest = min((distance for distance, _ in found), default=0)
    best = [pair for distance, pair in found if distance == nearest]
    return best[0] if len(best) == 1 else None


def _cross(sent: Call, send: Instance, wanted: Call, receive: Instance) -> Crossed | None:
    if sent.group != wanted.group or send.p2p is None or receive.p2p is None:
        return None
    source, destination, send_tag, sent_before = send.p2p
    peer, receiver, receive_tag, received_before = receive.p2p
    if send_tag != receive_tag:
        same = (source, destination) == (peer, receiver)
        return Crossed(send, receive, tuple(sorted((source, destination)))) if same else None
    if source == peer and sent_before <= received_before:
        return Crossed(send, receive, (source,))
    if destination == receiver and received_before <= sent_before:
        return Crossed(receive, send, (receiver,))
    return None
