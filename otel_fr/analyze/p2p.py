"""Sends and receives of recorders that do not number them within their pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otel_fr.dump.columns import P2P
from otel_fr.dump.model import Dump, Entry
from otel_fr.match.model import State


def number_pairs(dumps: Sequence[Dump]) -> tuple[list[list[Entry]], list[str]]:
    """The sends and receives of each dump, with global peers and the number within their pair.

    otel-fr records that number. For others it is the place among the file's calls of that pair; where older calls are
    missing from any file, among those that have not completed (a send and its receive complete together).

    Returns:
        one list of sends and receives per dump, and what remains undecided, as sentences.
    """
    found = [dump.entries.at(np.flatnonzero(dump.entries.stream == P2P)) for dump in dumps]
    incomplete = {
        entry.group
        for dump, entries in zip(dumps, found, strict=True)
        if dump.partial and dump.source != "otel-fr"
        for entry in entries
    }
    notes: list[str] = []
    out: list[list[Entry]] = []
    unknown = 0
    for dump, entries in zip(dumps, found, strict=True):
        if dump.source == "otel-fr":
            out.append(entries)
            continue
        counts: dict[tuple[object, ...], int] = {}
        kept: list[Entry] = []
        for entry in entries:
            if entry.group in incomplete and entry.state is State.COMPLETED:
                continue
            signature = entry.signature
            members = dump.groups[entry.group].ranks
            if signature.peer is None:
                unknown += not (signature.operation == "recv" and dump.source == "pytorch")
                kept.append(entry)
                continue
            if members and not 0 <= signature.peer < len(members):
                unknown += 1
                continue
            peer = members[signature.peer] if members else signature.peer
            place = (entry.group, signature.operation, peer)
            index = counts.get(place, 0)
            counts[place] = index + 1
            kept.append(entry._replace(signature=signature._replace(peer=peer), pair_index=index))
        out.append(kept)
    notes.extend(_resolve_any_source(dumps, out))
    if incomplete:
        notes.append("sends and receives: older ones are missing, so only those that have not completed were compared")
    if unknown:
        notes.append(f"{unknown} sends and receives were recorded without their peer and cannot be matched")
    return out, notes


_Place = tuple[str, int, int]
"""(group, receiver, tag)."""


def _resolve_any_source(dumps: Sequence[Dump], entries: list[list[Entry]]) -> list[str]:
    """Pair receives from any source with the only rank that sends to that receiver; else neither has a verdict.

    Receives beyond what that rank has sent stay open in a group of more than two: another member may have owed them.
    """
    senders: dict[_Place, set[int]] = {}
    sent: dict[_Place, int] = {}
    receivers: set[_Place] = set()
    named: set[_Place] = set()
    for dump, kept in zip(dumps, entries, strict=True):
        for entry in kept:
            signature, tag = entry.signature, entry.signature.tag or 0
            if signature.operation == "send" and signature.peer is not None:
                place = (entry.group, signature.peer, tag)
                senders.setdefault(place, set()).add(dump.rank)
                sent[place] = sent.get(place, 0) + 1
            elif signature.operation == "recv":
                (receivers if signature.any_source else named).add((entry.group, dump.rank, tag))
    if not receivers:
        return []
    files = {dump.rank for dump in dumps}
    whole = {
        key for dump in dumps for key, group in dump.groups.items() if group.ranks and files.issuperset(group.ranks)
    }
    only = {
        place: min(senders[place])
        for place in receivers - named
        if place[0] in whole and len(senders.get(place, ())) == 1
    }
    for dump, kept in zip(dumps, entries, strict=True):
        counts: dict[_Place, int] = {}
        for index, entry in enumerate(kept):
            signature, tag = entry.signature, entry.signature.tag or 0
            here = (entry.group, dump.rank, tag)
            if signature.operation == "recv" and signature.any_source and here in only:
                number = counts[here] = counts.get(here, -1) + 1
                if number >= sent[here] and len(dump.groups[entry.group].ranks) > 2:
                    continue
                known = signature._replace(peer=only[here], any_source=False)
                replaced = entry._replace(signature=known, pair_index=number)
            elif signature.operation == "send" and (entry.group, signature.peer, tag) in receivers - set(only):
                replaced = entry._replace(signature=signature._replace(any_source=True))
            else:
                continue
            kept[index] = replaced
    open_ = len(receivers - set(only))
    return [f"{open_} receivers take messages from any source: which send each got cannot be told"] if open_ else []
