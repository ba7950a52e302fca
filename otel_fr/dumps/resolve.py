"""Finds what only all entries of a file together show: coalesced batches, re-created groups, each group's progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from otel_fr.dumps import operation_names
from otel_fr.dumps.columns import (
    COLLECTIVE,
    COMPLETED,
    IN_FLIGHT,
    NONE,
    P2P,
    UNKNOWN,
    Codes,
    Entries,
    Integers,
    Mask,
)
from otel_fr.identity import STREAMS
from otel_fr.match.model import Signature
from otel_fr.operations import GATHERING, sides

_MISSING = -(1 << 62)


def backends_own(entries: Entries) -> Mask:
    """Mask that leaves out the hook's records (`operation_names.HOOK`) of calls that the backend records, too.

    The backend's own records show when calls complete. gloo does not record sends and receives, so the hook's records
    of them remain.
    """
    hooks = np.array([label.backend == operation_names.HOOK for label in entries.labels], np.bool_)
    hooked: Mask = hooks[entries.label]
    if not hooked.any():
        return ~hooked
    streams = entries.group.astype(np.int64) * len(STREAMS) + entries.stream
    recorded = np.zeros(int(streams.max()) + 1, np.bool_)
    recorded[streams[~hooked]] = True
    second: Mask = hooked & recorded[streams]
    return ~second


def resolve_batches(entries: Entries, ends: Codes, *, wrapped: bool) -> Entries:
    """Resolve coalesced batches. Recorders write a batch as members with one number, always "scheduled", and an end.

    The end is removed, and the members take its state. But if the backend executed one list operation piece by piece,
    the pieces are removed, and the end becomes that operation. If the oldest entry of a wrapped ring is a piece, its
    list is not known, because earlier pieces may be lost.

    If a file does not contain every call, members without an end have completed, and their end was left out.

    Args:
        wrapped: the file does not contain every call (`is_whole` returns False).
    """
    if not wrapped and not ends.any():
        return entries
    batch_of = _batch_numbers(entries)
    ended = np.zeros(int(batch_of.max()) + 1, np.bool_)
    ended[batch_of[ends > 0]] = True
    positions = np.flatnonzero(ended[batch_of])
    kept = np.ones(len(entries), np.bool_)
    parts: list[int] = []
    ends_of: list[int] = []
    signatures = {signature: index for index, signature in enumerate(entries.signatures)}
    signature = entries.signature.copy()
    open_: dict[int, list[int]] = {}
    for at, where, end in zip(positions.tolist(), batch_of[positions].tolist(), ends[positions].tolist(), strict=True):
        if not end:
            open_.setdefault(where, []).append(at)
            continue
        batch = open_.pop(where, [])
        if not batch:
            continue
        operation = operation_names.UNEVEN_LISTS.get(operation_names.BATCH_ENDS[end - 1])
        if operation is None:
            kept[at] = False
            parts.extend(batch)
            ends_of.extend([at] * len(batch))
            continue
        kept[batch] = False
        pieces = [entries.signatures[index] for index in signature[batch].tolist()]
        whole = _list_operation(operation, entries.signatures[signature[at]], pieces)
        if wrapped and batch[0] == 0:
            whole = whole._replace(output_sizes=()) if operation in GATHERING else whole._replace(input_sizes=())
        signature[at] = signatures.setdefault(whole, len(signatures))
    state, record = entries.state.copy(), entries.record
    state[parts] = state[ends_of]
    if wrapped:
        state[(np.bincount(batch_of)[batch_of] > 1) & ~ended[batch_of]] = COMPLETED
    changes = {"state": state, "signature": signature, "signatures": list(signatures)}
    batches = np.full(len(entries), NONE, np.int64)
    batches[parts] = record[ends_of]
    changes["batch"] = batches
    for name in ("duration", "started", "ended"):
        column = getattr(entries, name)
        if column is not None:
            column = column.copy()
            column[parts] = column[ends_of]
            changes[name] = column
    return entries.replace(**changes).take(kept)


def is_whole(entries: Entries) -> bool:
    """Return whether these are all calls of a recorder: none was overwritten, and no completed call was left out."""
    return not len(entries) or (int(entries.record[0]) <= 0 and is_gapless(entries))


def is_gapless(entries: Entries) -> bool:
    """Return whether no call after the first entry is missing."""
    return not len(entries) or int(entries.record.max()) - int(entries.record.min()) < len(entries)


def _batch_numbers(entries: Entries) -> Integers:
    """Number the entries so that entries of one group, stream and sequence number share a number."""
    keys = (entries.sequence_id, entries.stream, entries.group)
    order = np.lexsort(keys)
    first = np.zeros(len(order), np.bool_)
    for key in keys:
        found = key[order]
        first[1:] |= found[1:] != found[:-1]
    batch_of = np.empty(len(order), np.int64)
    batch_of[order] = np.cumsum(first)
    return batch_of


def _list_operation(operation: str, end: Signature, pieces: list[Signature]) -> Signature:
    """Make the signature of a list operation. The outputs of all_gather are the tensors that were broadcast; the inputs
    of reduce_scatter are the tensors that were reduced."""
    whole = [sides(operation, (p.input_sizes, p.input_dtypes), (p.output_sizes, p.output_dtypes))[1] for p in pieces]
    sizes = tuple(shape for shapes, _ in whole for shape in shapes)
    dtypes = tuple(name for _, names in whole for name in names)
    own, _ = sides(operation, end.input_sizes, end.output_sizes)
    ins, outs = sides(operation, own, sizes)
    return Signature(operation, ins, outs, end.input_dtypes or dtypes, end.output_dtypes or dtypes)


def drop_replaced_groups(entries: Entries) -> Entries:
    """Drop the older calls of groups that were destroyed and created again: the new group counts from the start."""
    calls = np.flatnonzero(entries.stream == COLLECTIVE)
    calls = calls[np.argsort(entries.group[calls], kind="stable")]
    here, after = calls[:-1], calls[1:]
    number, group = entries.sequence_id, entries.group
    restarted = number[here] > number[after]
    repeated = number[here] == number[after]
    if entries.batch is not None:
        repeated &= (entries.batch[here] == NONE) | (entries.batch[here] != entries.batch[after])
    ends = here[(group[here] == group[after]) & (restarted | repeated)]
    if not len(ends):
        return entries
    last = np.full(len(entries.groups), -1, np.int64)
    np.maximum.at(last, group[ends], ends)
    return entries.take(np.arange(len(entries)) > last[group])


def number_by_order(entries: Entries) -> Entries:
    """Number the calls within their group, from 0. torchcomms counts calls over all groups of a rank.

    torchcomms records sends and receives without their peer, so they are neither numbered nor matched.
    """
    calls = np.flatnonzero(entries.stream != P2P)
    calls = calls[np.argsort(entries.group[calls], kind="stable")]
    group = entries.group[calls]
    count = np.arange(len(calls))
    begins = np.ones(len(calls), np.bool_)
    begins[1:] = group[1:] != group[:-1]
    number = entries.sequence_id.copy()
    number[calls] = count - np.maximum.accumulate(np.where(begins, count, 0))
    return entries.replace(sequence_id=number)


class SequenceRange(NamedTuple):
    """The sequence numbers in the entries of one group.

    Attributes:
        oldest, newest: lowest and highest number of the group's collectives. None: there is none.
        completed: the highest completed number. None: there is none.
        unended: the lowest number that is not known to have ended. None: there is none.
        messages: the highest number of a send or receive. None: there is none.
        others: the group also has sends, receives or monitored barriers.
    """

    oldest: int | None
    newest: int | None
    completed: int | None
    unended: int | None
    messages: int | None
    others: bool


NO_RANGE = SequenceRange(None, None, None, None, None, False)
"""The range of a group without entries."""


def sequence_ranges(entries: Entries) -> Mapping[str, SequenceRange]:
    """The `SequenceRange` of each group that has entries, by `Entry.group`."""
    collective = entries.stream == COLLECTIVE
    columns = (
        _lowest(entries, collective),
        _highest(entries, collective),
        _highest(entries, collective & (entries.state == COMPLETED)),
        _lowest(entries, collective & np.isin(entries.state, (IN_FLIGHT, UNKNOWN))),
        _highest(entries, entries.stream == P2P),
    )
    others = np.zeros(len(entries.groups), np.bool_)
    others[entries.group[~collective]] = True
    rows = zip(*columns, others.tolist(), strict=True)
    return {key: SequenceRange(*row) for key, row in zip(entries.groups, rows, strict=True)}


def _highest(entries: Entries, which: Mask) -> list[int | None]:
    found = np.full(len(entries.groups), _MISSING, np.int64)
    np.maximum.at(found, entries.group[which], entries.sequence_id[which])
    return [None if number == _MISSING else number for number in found.tolist()]


def _lowest(entries: Entries, which: Mask) -> list[int | None]:
    found = np.full(len(entries.groups), -_MISSING, np.int64)
    np.minimum.at(found, entries.group[which], entries.sequence_id[which])
    return [None if number == -_MISSING else number for number in found.tolist()]
