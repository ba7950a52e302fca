"""Numbers the sends and receives of all files within their pairs, and finds those that need not be judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from otel_fr.analyze.assemble.message_alignment import SharedCollectives, align, shared_collectives
from otel_fr.analyze.assemble.messages import Messages, Pair
from otel_fr.dumps import operation_names
from otel_fr.dumps.columns import COMPLETED, UNKNOWN, Indices, Mask, Table
from otel_fr.dumps.model import Dump
from otel_fr.match.facts.legal import alike
from otel_fr.match.model import Signature

MAX_NAMED = 4
"""Pairs that a note names."""

_Receiver = tuple[str, int, int]
"""(group key, receiver, tag)."""


def number_messages(dumps: Sequence[Dump]) -> tuple[list[Messages], list[str]]:
    """The sends and receives of each file, with global peers and their numbers within the pair.

    otel-fr records these numbers. For other recorders, `message_alignment.align` finds them.

    Returns:
        One `Messages` per file, and sentences about what remains undecided.
    """
    found = [Messages(dump) for dump in dumps]
    unknown = sum(_to_global_ranks(dump, own) for dump, own in zip(dumps, found, strict=True))
    only, notes = _resolve_any_source(dumps, found)
    notes += _Numbering(dumps, found, only).run()
    if unknown:
        notes.append(f"{unknown} sends and receives were recorded without their peer and cannot be matched")
    return found, notes


def _to_global_ranks(dump: Dump, messages: Messages) -> int:
    """Translate peers that are ranks within the group. Return the number of calls without a known peer."""
    unknown = 0

    def globally(group: str, signature: Signature, which: Indices) -> Signature | None:
        nonlocal unknown
        members, peer = dump.groups[group].ranks, signature.peer
        if peer is None:
            from_anybody = signature.operation == "recv" and dump.source == "pytorch"
            if signature.operation == operation_names.COALESCED:
                # The end of a batch whose calls are lost. It matters only if it has not completed.
                which = which[messages.entries.state[which] != COMPLETED]
            unknown += 0 if from_anybody else len(which)
            return signature
        if members and not 0 <= peer < len(members):
            unknown += len(which)
            return None
        return signature._replace(peer=members[peer] if members else peer)

    if dump.source != "otel-fr":
        messages.rewrite(globally)
    return unknown


def _resolve_any_source(dumps: Sequence[Dump], found: Sequence[Messages]) -> tuple[dict[_Receiver, int], list[str]]:
    """Name the sender of receives from any source if only one rank sends to the receiver. Others are not judged.

    Returns:
        Receiver -> its only sender, and sentences about what remains undecided.
    """
    senders: dict[_Receiver, set[int]] = {}
    receives: list[tuple[_Receiver, Signature]] = []
    for own in found:
        for group, signature, _ in own.kinds():
            tag = signature.tag or 0
            if signature.operation == "send" and signature.peer is not None:
                senders.setdefault((group, signature.peer, tag), set()).add(own.rank)
            elif signature.operation == "recv":
                receives.append(((group, own.rank, tag), signature))
    receivers = {receiver for receiver, signature in receives if signature.any_source}
    named = {receiver for receiver, signature in receives if signature.peer is not None}
    if not receivers:
        return {}, []
    files = {dump.rank for dump in dumps}
    whole = {
        key for dump in dumps for key, group in dump.groups.items() if group.ranks and files.issuperset(group.ranks)
    }
    only = {
        receiver: min(senders[receiver])
        for receiver in receivers - named
        if receiver[0] in whole and len(senders.get(receiver, ())) == 1
    }
    left = receivers - set(only)
    for own in found:

        def known(group: str, signature: Signature, _: Indices, rank: int = own.rank) -> Signature:
            tag = signature.tag or 0
            if signature.operation == "recv" and signature.any_source and (group, rank, tag) in only:
                return signature._replace(peer=only[group, rank, tag], any_source=False)
            if signature.operation == "send" and (group, signature.peer, tag) in left:
                return signature._replace(any_source=True)
            return signature

        own.rewrite(known)
    if not left:
        return only, []
    return only, [f"{len(left)} receivers take messages from any source: which send each of them got is not known"]


class _Numbering:
    """Numbers sends and receives, pair by pair."""

    def __init__(self, dumps: Sequence[Dump], found: Sequence[Messages], only: Mapping[_Receiver, int]) -> None:
        self._dumps = {dump.rank: dump for dump in dumps}
        self._found = {own.rank: own for own in found}
        self._only = only
        self._groups: Table[str] = Table()
        self._shared: dict[int, SharedCollectives] = {}
        self._lost = {own.rank: np.zeros(len(own.entries), np.bool_) for own in found}
        self._vague = {own.rank: np.zeros(len(own.entries), np.bool_) for own in found}
        self._fits: dict[tuple[Signature, Signature], bool] = {}

    def run(self) -> list[str]:
        """Number all messages. Return sentences about what remains undecided."""
        halves: dict[Pair, dict[str, Indices]] = {}
        for own in self._found.values():
            for (pair, operation), positions in own.by_pair().items():
                halves.setdefault(pair, {})[operation] = positions
        none = np.empty(0, np.int32)
        vague: list[Pair] = []
        for pair, of_pair in halves.items():
            sends, receives = of_pair.get("send", none), of_pair.get("recv", none)
            if not self._number(pair, sends, receives):
                vague.append(pair)
        for rank, own in self._found.items():
            own.close(self._lost[rank], self._vague[rank])
        return _unmatched_text(vague)

    def _number(self, pair: Pair, sends: Indices, receives: Indices) -> bool:
        """Number one pair. Return False if some calls that have not completed could not be numbered."""
        sender, receiver = self._found.get(pair.source), self._found.get(pair.destination)
        if sender is None or receiver is None:
            for own, positions in ((sender, sends), (receiver, receives)):
                if own is not None and own.source != "otel-fr":
                    own.number[positions] = np.arange(len(positions))
            return True
        clear = True
        if "otel-fr" not in (sender.source, receiver.source):
            aligned = align(
                sender.pair_end(sends),
                receiver.pair_end(receives),
                self._shared_by(sender),
                self._shared_by(receiver),
            )
            sender.number[sends] = -1 if aligned is None else aligned.sends
            receiver.number[receives] = -1 if aligned is None else aligned.receives
            if aligned is not None and not aligned.is_sure and self._unfit(sender, sends, receiver, receives):
                sender.number[sends] = receiver.number[receives] = -1
            for own, positions in ((sender, sends), (receiver, receives)):
                clear &= self._leave(own, positions[own.number[positions] < 0])
        beyond = receives[receiver.number[receives] > sender.number[sends].max(initial=-1)]
        if self._only.get((pair.group, pair.destination, pair.tag)) == pair.source and self._is_large(pair):
            self._leave(receiver, beyond)  # they may have been meant for sends of another member
        self._decide(sender, sends, receiver, receives)
        return clear

    def _leave(self, own: Messages, positions: Indices) -> bool:
        """Leave out calls without a counterpart. Return True if all have completed: then nothing remains undecided."""
        completed = own.entries.state[positions] == COMPLETED
        self._lost[own.rank][positions[completed]] = True
        self._vague[own.rank][positions[~completed]] = True
        return bool(completed.all())

    def _is_large(self, pair: Pair) -> bool:
        return len(self._dumps[pair.destination].groups[pair.group].ranks) > 2

    def _shared_by(self, own: Messages) -> SharedCollectives:
        if own.rank not in self._shared:
            self._shared[own.rank] = shared_collectives(self._dumps[own.rank], self._groups)
        return self._shared[own.rank]

    def _decide(self, sender: Messages, sends: Indices, receiver: Messages, receives: Indices) -> None:
        """Mark as decided the messages that both ends have completed and whose ends match.

        If a backend does not show when calls end, a message with both ends counts as completed, as in the collector.
        """
        sends, receives = _joined(sender, sends, receiver, receives)
        done = _may_have_ended(sender, sends) & _may_have_ended(receiver, receives)
        done &= ~self._misfits(sender, sends, receiver, receives)
        sender.decided[sends] = receiver.decided[receives] = done

    def _unfit(self, sender: Messages, sends: Indices, receiver: Messages, receives: Indices) -> bool:
        sends, receives = _joined(sender, sends, receiver, receives)
        return bool(self._misfits(sender, sends, receiver, receives).any())

    def _misfits(self, sender: Messages, sends: Indices, receiver: Messages, receives: Indices) -> Mask:
        """Mask of the sends that do not match the receive at the same position."""
        width = max(1, len(receiver.entries.signatures))
        kinds = sender.entries.signature[sends].astype(np.int64) * width + receiver.entries.signature[receives]
        values, inverse = np.unique(kinds, return_inverse=True)
        both = [divmod(kind, width) for kind in values.tolist()]
        signatures, others = sender.entries.signatures, receiver.entries.signatures
        unfit = [not self._fit(signatures[sent], others[received]) for sent, received in both]
        return np.array(unfit, np.bool_)[inverse]

    def _fit(self, sent: Signature, received: Signature) -> bool:
        if (sent, received) not in self._fits:
            self._fits[sent, received] = alike(sent, received) is None
        return self._fits[sent, received]


def _may_have_ended(own: Messages, positions: Indices) -> Mask:
    return np.isin(own.entries.state[positions], (COMPLETED, UNKNOWN))


def _joined(sender: Messages, sends: Indices, receiver: Messages, receives: Indices) -> tuple[Indices, Indices]:
    """Join sends and receives by their numbers: those at the same position belong together.

    Numbers may repeat, because a recorder may have restarted its count.
    """
    sends, receives = sends[sender.number[sends] >= 0], receives[receiver.number[receives] >= 0]
    _, here, there = np.intersect1d(sender.number[sends], receiver.number[receives], return_indices=True)
    return sends[here], receives[there]


def _unmatched_text(vague: list[Pair]) -> list[str]:
    if not vague:
        return []
    named = ", ".join(f"from rank {pair.source} to rank {pair.destination}" for pair in sorted(vague)[:MAX_NAMED])
    more = f" and {len(vague) - MAX_NAMED} more" if len(vague) > MAX_NAMED else ""
    return [
        f"messages {named}{more}: older calls are missing from the files, so it is not known which messages the"
        " calls in flight wait for"
    ]
